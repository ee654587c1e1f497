"""ssd's checks, extreme decays (to zero, of one, growing), and the comparison with `selective_scan`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from checks import contract
from torch import Tensor

from ops.ssd.calls import check_decayed, check_reset, drawn
from retrograd import selective_scan, ssd, ssd_update
from retrograd.core.arch import SUPPORTED
from retrograd.core.spec import Param
from retrograd.jax import ssd as jax_ssd
from retrograd.opinfo.cases import Case
from retrograd.ops.ssd import reference
from retrograd.ops.ssd.cases import ALL, case
from retrograd.ops.ssd.info import INFO
from retrograd.ops.ssd.op import OP, Spec
from retrograd.ops.ssd.steps import Update
from retrograd.testing.draw import call, draw, draw_gradients, leaves, options, upcast

OPTIONS: dict[str, Any] = {"dt_softplus": False, "dt_limit": (0.0, 1.0), "return_final_state": True}
SHAPES: dict[str, tuple[int, ...]] = {
    "x": (2, 9, 6, 4),
    "dt": (2, 9, 6),
    "A": (6,),
    "B": (2, 9, 3, 5),
    "C": (2, 9, 3, 5),
    "D": (6,),
    "z": (2, 9, 6, 4),
    "dt_bias": (6,),
    "initial_state": (2, 6, 4, 5),
}
FLOATS = "float32 or bfloat16 or float16 or float64"


def spec_of(change: dict[str, Any]) -> Spec:
    """The spec of SHAPES with other shapes, dtypes and options; (shape, dtype) changes both."""
    params: dict[str, Param | None] = {name: Param(shape, "float32") for name, shape in SHAPES.items()}
    options = OPTIONS | {name: value for name, value in change.items() if name in OPTIONS}
    for name, value in change.items():
        if name in SHAPES:
            shape, dtype = (SHAPES[name], value) if isinstance(value, str) else (value, "float32")
            params[name] = None if value is None else Param(shape, dtype)
    if "cu_seqlens" in change:
        params["cu_seqlens"] = Param(change["cu_seqlens"], change.get("of", "int32"))
    return OP.spec(params, options)


PACKED: dict[str, Any] = {
    name: (1, *shape[1:]) for name, shape in SHAPES.items() if len(shape) > 1 and name != "initial_state"
}


# More steps than 32 bits count.
LONG: dict[str, Any] = {
    "x": (1, 2**31, 1, 1),
    "dt": (1, 2**31, 1),
    "A": (1,),
    "B": (1, 2**31, 1, 1),
    "C": (1, 2**31, 1, 1),
    **dict.fromkeys(("D", "z", "dt_bias", "initial_state")),
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"return_final_state": 1}, "return_final_state is int, expected a bool"),
        ({"dt_softplus": None}, "dt_softplus is NoneType, expected a bool"),
        ({"dt_limit": 1.0}, "dt_limit is float, expected a tuple of floats"),
        ({"dt_limit": (1.0, 0.5)}, "dt_limit is (1.0, 0.5), expected (low, high) with low <= high"),
        ({"x": None}, "x is NoneType, expected an array"),
        ({"C": None}, "C is NoneType, expected an array"),
        ({"x": (2, 9, 24)}, "x has shape (2, 9, 24), expected (batch, time, heads, channels=1..256)"),
        ({"x": "int32"}, f"x has dtype int32, expected {FLOATS}"),
        (
            {"x": (2, 9, 6, 0)},
            "x has shape (2, 9, 6, 0), expected (batch=2, time=9, heads=6, channels=1..256)",
        ),
        (
            {"x": (2, 9, 6, 257)},
            "x has shape (2, 9, 6, 257), expected (batch=2, time=9, heads=6, channels=1..256)",
        ),
        ({"dt": (2, 9, 6, 4)}, "dt has shape (2, 9, 6, 4), expected (batch=2, time=9, heads=6)"),
        ({"dt": "bfloat16"}, "dt has dtype bfloat16, expected float32"),
        ({"x": "bfloat16", "dt": "float16"}, "dt has dtype float16, expected bfloat16 or float32"),
        ({"A": (6, 5)}, "A has shape (6, 5), expected (heads=6,)"),
        ({"x": "float16", "A": "float16"}, "A has dtype float16, expected float32"),
        ({"B": (2, 9, 5)}, "B has shape (2, 9, 5), expected (batch=2, time=9, groups, state=1..256)"),
        ({"B": (2, 8, 3, 5)}, "B has shape (2, 8, 3, 5), expected (batch=2, time=9, groups, state=1..256)"),
        (
            {"B": (2, 9, 3, 257)},
            "B has shape (2, 9, 3, 257), expected (batch=2, time=9, groups=3, state=1..256)",
        ),
        (
            {"B": (2, 9, 3, 0)},
            "B has shape (2, 9, 3, 0), expected (batch=2, time=9, groups=3, state=1..256)",
        ),
        ({"B": (2, 9, 4, 5)}, "B.shape[2] is 4, expected groups that divide the heads, 6"),
        ({"B": (2, 9, 0, 5)}, "B.shape[2] is 0, expected groups that divide the heads, 6"),
        ({"B": "float64"}, "B has dtype float64, expected float32"),
        ({"C": (2, 9, 3, 4)}, "C has shape (2, 9, 3, 4), expected (batch=2, time=9, groups=3, state=5)"),
        ({"C": "bfloat16"}, "C has dtype bfloat16, expected float32"),
        ({"z": (2, 9, 24)}, "z has shape (2, 9, 24), expected the shape of x, (2, 9, 6, 4)"),
        ({"z": "float16"}, "z has dtype float16, expected float32"),
        ({"D": (4,)}, "D has shape (4,), expected (heads=6,) or (heads=6, channels=4)"),
        ({"D": (6, 5)}, "D has shape (6, 5), expected (heads=6,) or (heads=6, channels=4)"),
        ({"D": "float64"}, "D has dtype float64, expected float32"),
        ({"dt_bias": (4,)}, "dt_bias has shape (4,), expected (heads=6,)"),
        ({"dt_bias": "bfloat16"}, "dt_bias has dtype bfloat16, expected float32"),
        (
            {"initial_state": (6, 4, 5)},
            "initial_state has shape (6, 4, 5), expected (batch=2, heads=6, channels=4, state=5)",
        ),
        ({"initial_state": "bfloat16"}, "initial_state has dtype bfloat16, expected float32"),
        (
            PACKED | {"cu_seqlens": (4,)},
            "initial_state has shape (2, 6, 4, 5), expected (sequences=3, heads=6, channels=4, state=5)",
        ),
        (
            {"cu_seqlens": (3,)},
            "x has shape (2, 9, 6, 4), expected (batch=1, time, heads, channels=1..256), since cu_seqlens is given",
        ),
        (
            PACKED | {"cu_seqlens": (1,)},
            "cu_seqlens has shape (1,), expected (sequences + 1,) with at least one sequence",
        ),
        (
            PACKED | {"cu_seqlens": (3, 1)},
            "cu_seqlens has shape (3, 1), expected (sequences + 1,) with at least one sequence",
        ),
        (PACKED | {"cu_seqlens": (3,), "of": "int16"}, "cu_seqlens has dtype int16, expected int32 or int64"),
        (
            LONG,
            "x has shape (1, 2147483648, 1, 1), expected batch * time + 64 * sequences of at most 2147221504",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        spec_of(change)
    assert str(raised.value) == f"ssd: {text}"


@pytest.mark.parametrize(
    "change",
    [
        {"D": (6, 4)},
        {"x": "bfloat16", "dt": "bfloat16", "B": "bfloat16", "C": "float32", "z": "float32"},
        {"B": (2, 9, 1, 5), "C": (2, 9, 1, 5)},
        {"B": (2, 9, 6, 5), "C": (2, 9, 6, 5)},
        {"x": (2, 9, 6, 256), "z": (2, 9, 6, 256), "initial_state": None},
        {"B": (2, 9, 3, 256), "C": (2, 9, 3, 256), "initial_state": None},
        PACKED | {"cu_seqlens": (3,)},
        {"dt_limit": (0, 1)},
    ],
)
def test_what_fits_together_is_taken(change: dict[str, Any]) -> None:
    spec_of(change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": (2, 1, 6, 4)}, "x has shape (2, 1, 6, 4), expected (batch, heads, channels=1..256)"),
        ({"dt": (2, 1, 6)}, "dt has shape (2, 1, 6), expected (batch=2, heads=6)"),
        ({"B": (2, 5)}, "B has shape (2, 5), expected (batch=2, groups, state=1..256)"),
        ({"B": (2, 4, 5)}, "B.shape[1] is 4, expected groups that divide the heads, 6"),
        ({"C": (2, 3, 4)}, "C has shape (2, 3, 4), expected (batch=2, groups=3, state=5)"),
        ({"D": (6, 5)}, "D has shape (6, 5), expected (heads=6,) or (heads=6, channels=4)"),
        ({"state": (2, 6, 5, 4)}, "state has shape (2, 6, 5, 4), expected (batch=2, heads=6, channels=4, state=5)"),
    ],
)
def test_what_is_expected_of_a_step_has_no_time(change: dict[str, Any], text: str) -> None:
    shapes = {name: (shape[0], *shape[2:]) if len(shape) > 1 else shape for name, shape in SHAPES.items()}
    del shapes["initial_state"]
    shapes["state"] = SHAPES["initial_state"]
    params = {name: Param(shape, "float32") for name, shape in (shapes | change).items()}
    with pytest.raises(ValueError, match="ssd_update") as raised:
        Update.of(params, {"dt_softplus": False, "dt_limit": (0.0, 1.0)})
    assert str(raised.value) == f"ssd_update: {text}"


@pytest.mark.parametrize(("N", "chunk"), [(1, 128), (128, 128), (129, 256), (256, 256)])
@pytest.mark.parametrize("sequences", [None, 1, 1000])
def test_a_million_steps_keep_at_most_as_many_bytes_as_x_has(N: int, chunk: int, sequences: int | None) -> None:
    def of(time: int) -> Spec:
        packed = {} if sequences is None else {"cu_seqlens": Param((sequences + 1,), "int32")}
        matrix = Param((1, time, 8, N), "bfloat16")
        row = {"x": Param((1, time, 64, 64), "bfloat16"), "dt": Param((1, time, 64), "float32")}
        params = {**row, "A": Param((64,), "float32"), "B": matrix, "C": matrix, **packed}
        return OP.spec(params, OPTIONS)

    steps = 2**20
    spec = of(steps)
    assert spec.chunk == chunk
    assert spec.chunks == steps // chunk + (sequences or 0)
    x = 2 * 64 * 64 * steps
    a_state = 2 * 64 * 64 * N
    kept = spec.chunks * a_state
    assert kept <= x + (sequences or 0) * a_state
    for which in ("fwd", "bwd"):
        assert spec.flops(which) == 2 * of(steps // 2).flops(which)
        assert spec.bytes_moved(which) > 2 * x + kept
    for arch in ("sm_90", "sm_100"):
        program = OP.only("triton").forward(spec).program({}, SUPPORTED[arch])
        assert program is not None
        assert all(launch.grid < 2**31 for launch in program.launches)
        (entering,) = (array for array in program.scratch if array.name == "entering")
        assert entering.shape == (steps // 64 + (sequences or 0), 64, 64, N)


def as_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **given: Any) -> tuple[Tensor, ...]:
    """The call as `selective_scan`: channels are independent, and each state has the decay of its head."""
    heads, P = x.shape[2:]
    N = B.shape[-1]

    def of_channels(array: Tensor) -> Tensor:
        """(..., heads) as (..., channels of all heads)."""
        return array.repeat_interleave(P, -1)

    for name in ("D", "dt_bias"):
        if name in given:
            given[name] = given[name].flatten() if given[name].dim() == 2 else of_channels(given[name])
    if "z" in given:
        given["z"] = given["z"].flatten(2)
    if "initial_state" in given:
        given["initial_state"] = given["initial_state"].flatten(1, 2)
    dt = dt.clamp(*given.pop("dt_limit")) if "dt_limit" in given else dt
    y, state = selective_scan(x.flatten(2), of_channels(dt), of_channels(A)[:, None].expand(-1, N), B, C, **given)
    return y.view(x.shape), state.view(-1, heads, P, N)


@pytest.mark.parametrize(
    "tried",
    [
        case("wide skip", (1, 70, 4, 3, 2, 5), wide_D=True, **ALL),
        case("limit", (2, 30, 3, 2, 1, 4), given={"D"}, dt_limit=(0.08, 0.12), return_final_state=True),
        case("packed", (1, 150, 4, 3, 4, 2), cu_seqlens=(2, 2, 10, 145), **ALL),
    ],
    ids=lambda tried: tried.name,
)
def test_with_one_decay_a_head_it_is_the_selective_scan(tried: Case, seed: int) -> None:
    inputs = {name: upcast(tensor) for name, tensor in draw(tried, "cpu", seed).items()}
    incoming = draw_gradients(reference.ssd, tried, inputs, seed)
    found, expected = (call(function, inputs, tried.options, incoming) for function in (ssd, as_scan))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["odd", "groups", "packed", "strong_decay", "wide_skip", "no_steps"])
def test_by_blocks_in_float64_the_definition_is_the_same(name: str, seed: int) -> None:
    tried = INFO.case(name)
    inputs, gradients = contract.drawn(INFO, tried, "cpu", seed)
    exact = {name: upcast(tensor) for name, tensor in inputs.items()}
    both = [
        call(partial(reference.ssd, scan=scan), exact, options(tried, torch.float64), [upcast(g) for g in gradients])
        for scan in (reference.by_steps, reference.by_blocks)
    ]
    for name, expected in both[0].items():
        torch.testing.assert_close(both[1][name], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("packed", [False, True])
def test_every_element_of_every_gradient_is_that_of_finite_differences(packed: bool, seed: int) -> None:
    shape, bounds = ((1, 4, 2, 2, 2, 1), (1, 1, 3)) if packed else ((2, 2, 2, 2, 1, 1), None)
    tried = case("tiny", shape, wide_D=packed, cu_seqlens=bounds, dt_limit=(1e-3, 10.0), **ALL)
    inputs: dict[str, Any] = leaves({name: upcast(tensor) for name, tensor in draw(tried, "cpu", seed).items()})
    names = [name for name, tensor in inputs.items() if tensor.requires_grad]

    def call(*tensors: Tensor) -> Any:
        return ssd(**(inputs | dict(zip(names, tensors, strict=True))), **tried.options)

    assert torch.autograd.gradcheck(call, [inputs[name] for name in names])


@pytest.mark.parametrize(("rate", "length"), [(1.0, 1e6), (1e20, 1e20)], ids=["-1e6", "-inf"])
def test_a_decay_to_nothing_forgets_all_and_spoils_nothing(rate: float, length: float, seed: int) -> None:
    check_reset(rate, length, seed)


@pytest.mark.parametrize("function", [ssd, reference.plain], ids=["ssd", "plain computation of the error budget"])
def test_a_gradient_through_the_final_state_alone_keeps_its_digits(function: Callable[..., Any]) -> None:
    check_decayed(function)


def test_so_it_does_in_jax() -> None:
    A = jnp.array([-8.0, -16.0, -20.0, -40.0])
    ones = jnp.ones((1, 2, 4, 1))
    arrays = ones, ones[..., 0], A, ones[:, :, :1], ones[:, :, :1]
    dA = jax.grad(lambda A: jax_ssd(*arrays[:2], A, *arrays[3:], return_final_state=True)[1].sum())(A)
    np.testing.assert_allclose(dA, jnp.exp(A), rtol=2.0**-16)


# In bfloat16 the budget is wider, and the time would double.
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_what_grows_keeps_its_error_budget(dtype: str, seed: int) -> None:
    tried = case("growth", (1, 80, 64, 2, 1, 4), dtype=dtype, initial_state=True, return_final_state=True)
    A = replace(tried.inputs["A"], mean=0.5, std=0.1, law="normal")
    contract.check_errors(INFO, replace(tried, inputs={**tried.inputs, "A": A}), "cpu", seed)


@pytest.mark.parametrize("limit", [(0.0, 1e39), (-1e300, 10**300), (-(2**200), 2**100), (0, 3.5e38)])
def test_a_limit_that_float32_has_no_number_for_is_none(limit: tuple[float, float], seed: int) -> None:
    inputs = drawn(seed, (2, 9, 3, 4, 1, 5))
    low = -math.inf if limit[0] < 0 else 0.0
    inputs["x"].requires_grad_()
    for name, tensor in inputs.items():
        assert tensor.dtype == torch.float32, name
    found, expected = (ssd(**inputs, dt_limit=dt_limit) for dt_limit in (limit, (low, math.inf)))
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(y.sum(), inputs["x"])[0] for y in (found, expected)))


def test_a_step_of_size_zero_leaves_the_state_as_it_is(seed: int) -> None:
    inputs = drawn(seed, (2, 140, 3, 4, 1, 5), initial_state=True)
    whole: dict[str, Any] = {**inputs, "return_final_state": True}
    still = {**whole, "dt": torch.zeros_like(inputs["dt"])}
    y, state = ssd(**still)
    assert torch.equal(state, inputs["initial_state"])
    seen = torch.einsum("bhpn,btn->bthp", inputs["initial_state"], inputs["C"][:, :, 0])
    torch.testing.assert_close(y, seen)
    for steps in (1, 100, 130):
        part: dict[str, Any] = {n: t[:, :steps] if n in ("x", "dt", "B", "C") else t for n, t in inputs.items()}
        after = inputs["dt"].clone()
        after[:, steps:] = 0
        _, expected = ssd(**part, return_final_state=True)
        assert torch.equal(ssd(**{**whole, "dt": after})[1], expected)


@pytest.mark.parametrize("P", [1, 256])
@pytest.mark.parametrize("N", [1, 256])
def test_the_widest_and_the_narrowest_head_go_step_by_step_as_all_at_once(P: int, N: int, seed: int) -> None:
    drawn_in_fp32 = drawn(seed, (1, 3, 2, P, 2, N), initial_state=True)
    inputs: dict[str, Any] = {name: upcast(tensor) for name, tensor in drawn_in_fp32.items()}
    y, last = ssd(**inputs, return_final_state=True)
    state = inputs.pop("initial_state")
    A = inputs.pop("A")
    for t in range(3):
        step: dict[str, Any] = {name: array[:, t] for name, array in inputs.items()}
        y_t, state = ssd_update(state, A=A, **step)
        torch.testing.assert_close(y_t, y[:, t], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)
