"""What is promised of rms_norm alone: its errors, its registered operators, and its behaviour at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from parameters import CASE, SMALL, each_case
from torch.nn.functional import rms_norm as torch_rms_norm

from retrograd import rms_norm
from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.testing.contract import drawn
from retrograd.testing.draw import call, draw, options
from retrograd.testing.integration import PassThrough
from retrograd.testing.layouts import GRADIENTS_ONLY, LAYOUTS

X = torch.zeros(2, 4, 64)
BF16 = X.bfloat16()
W = torch.ones(64)

ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "x without dimensions": (
        lambda: rms_norm(torch.tensor(1.0)), ValueError,
        "rms_norm: x has shape (), expected at least one dimension (..., N)"),
    "x of integers": (
        lambda: rms_norm(torch.ones(4, 8, dtype=torch.int64)), TypeError,
        "rms_norm: x has dtype int64, expected float32 or bfloat16 or float16 or float64"),
    "x too wide": (
        lambda: rms_norm(torch.ones(1, 262145)), ValueError,
        "rms_norm: x has shape (1, 262145), expected at most 262144 columns to normalise together"),
    "weight of another width": (
        lambda: rms_norm(X, torch.ones(32)), ValueError,
        "rms_norm: weight has shape (32,), expected (N=64,) or (heads=4, N=64)"),
    "weight of another width, x a vector": (
        lambda: rms_norm(torch.ones(8), torch.ones(4)), ValueError,
        "rms_norm: weight has shape (4,), expected (N=8,)"),
    "weight a head, with groups": (
        lambda: rms_norm(X, torch.ones(4, 64), group_size=32), ValueError,
        "rms_norm: weight has shape (4, 64), expected (N=64,), since group_size is given"),
    "weight of lower precision": (
        lambda: rms_norm(X, W.bfloat16()), TypeError, "rms_norm: weight has dtype bfloat16, expected float32"),
    "weight of the other half": (
        lambda: rms_norm(BF16, W.half()), TypeError,
        "rms_norm: weight has dtype float16, expected float32 or bfloat16"),
    "bias unlike weight": (
        lambda: rms_norm(X, torch.ones(4, 64), bias=W), ValueError,
        "rms_norm: bias has shape (64,), expected the shape of weight, (4, 64)"),
    "offset without weight": (
        lambda: rms_norm(X, weight_offset=1.0), ValueError,
        "rms_norm: weight_offset is 1.0, expected 0.0, since weight is None"),
    "residual of another shape": (
        lambda: rms_norm(X, residual=torch.ones(2, 64)), ValueError,
        "rms_norm: residual has shape (2, 64), expected the shape of x, (2, 4, 64)"),
    "residual in float64": (
        lambda: rms_norm(BF16, residual=X.double()), TypeError,
        "rms_norm: residual has dtype float64, expected float32 or bfloat16 or float16"),
    "gate of another shape": (
        lambda: rms_norm(X, gate=torch.ones(4, 64)), ValueError,
        "rms_norm: gate has shape (4, 64), expected the shape of x, (2, 4, 64)"),
    "gate beside float64": (
        lambda: rms_norm(X.double(), gate=X), TypeError, "rms_norm: gate has dtype float32, expected float64"),
    "eps zero": (
        lambda: rms_norm(X, eps=0.0), ValueError,
        "rms_norm: eps is 0.0, expected at least 1.175e-38, the smallest normal float32"),
    "eps not a number": (
        lambda: rms_norm(X, eps=float("nan")), ValueError, "rms_norm: eps is nan, expected a finite number"),
    "offset infinite": (
        lambda: rms_norm(X, W, weight_offset=float("inf")), ValueError,
        "rms_norm: weight_offset is inf, expected a finite number"),
    "groups that do not divide": (
        lambda: rms_norm(X, group_size=48), ValueError,
        "rms_norm: group_size is 48, expected a divisor of the last dimension of x, 64"),
    "groups of nothing": (
        lambda: rms_norm(X, group_size=0), ValueError,
        "rms_norm: group_size is 0, expected a divisor of the last dimension of x, 64"),
    "integers asked for": (
        lambda: rms_norm(X, out_dtype=torch.int32), TypeError,
        "rms_norm: out_dtype has dtype int32, expected float32 or bfloat16 or float16"),
}  # fmt: skip

# Values that are no tensor, float, int or dtype: PyTorch refuses them before a registered operator sees them.
WRONG_TYPES: dict[str, tuple[Callable[[], Any], str]] = {
    "x a list": (lambda: rms_norm([1.0, 2.0]), "rms_norm: x is list, expected a torch.Tensor"),  # type: ignore[arg-type,call-overload]
    "x None": (lambda: rms_norm(None), "rms_norm: x is NoneType, expected a torch.Tensor"),  # type: ignore[arg-type,call-overload]
    "weight a list": (lambda: rms_norm(X, [1.0] * 64), "rms_norm: weight is list, expected a torch.Tensor"),  # type: ignore[arg-type,call-overload]
    "eps a string": (lambda: rms_norm(X, eps="1e-6"), "rms_norm: eps is str, expected a float"),  # type: ignore[arg-type,call-overload]
    "eps a tensor": (lambda: rms_norm(X, eps=torch.tensor(1e-6)), "rms_norm: eps is Tensor, expected a float"),  # type: ignore[arg-type,call-overload]
    "group_size a float": (
        lambda: rms_norm(X, group_size=16.0),  # type: ignore[arg-type,call-overload]
        "rms_norm: group_size is float, expected an int or None",
    ),
    "norm_before_gate an int": (
        lambda: rms_norm(X, gate=X, norm_before_gate=1),  # type: ignore[arg-type,call-overload]
        "rms_norm: norm_before_gate is int, expected a bool",
    ),
    "out_dtype a string": (
        lambda: rms_norm(X, out_dtype="float16"),  # type: ignore[arg-type,call-overload]
        "rms_norm: out_dtype is str, expected a torch.dtype or None",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_the_argument_what_came_and_what_was_expected(name: str) -> None:
    wrong, kind, text = ERRORS[name]
    with pytest.raises(kind) as raised:
        wrong()
    assert str(raised.value) == text


@pytest.mark.parametrize("name", ERRORS)
def test_the_registered_operator_raises_the_same_errors(name: str) -> None:
    wrong, kind, text = ERRORS[name]
    with PassThrough(), pytest.raises(kind) as raised:
        wrong()
    assert str(raised.value) == text


@pytest.mark.parametrize("name", ["weight of another width", "weight of lower precision", "eps zero"])
def test_an_error_reads_the_same_in_a_compiled_function(name: str) -> None:
    torch._dynamo.reset()
    wrong, _, text = ERRORS[name]
    with pytest.raises(RuntimeError) as raised:
        torch.compile(wrong, fullgraph=True, backend="eager")()
    assert text in str(raised.value)


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_an_argument_of_the_wrong_type_is_named(name: str) -> None:
    wrong, text = WRONG_TYPES[name]
    with pytest.raises(TypeError) as raised:
        wrong()
    assert str(raised.value) == text


def test_a_wrong_type_is_refused_after_an_equal_value_of_the_right_type() -> None:
    rms_norm(X, group_size=16)
    rms_norm(X, gate=X, norm_before_gate=True)
    rms_norm(X, eps=1.0)
    for wrong in ({"group_size": 16.0}, {"gate": X, "norm_before_gate": 1}, {"eps": True}):
        with pytest.raises(TypeError):
            rms_norm(X, **wrong)  # type: ignore[call-overload]


def test_arrays_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^rms_norm: device of weight is 'meta', expected cpu, the device of x$"):
        rms_norm(X, torch.ones(64, device="meta"))


def operator_arguments(room: Room, case: Case, device: str, seed: int, layout: str | None = None) -> tuple[Any, ...]:
    """What the registered operator takes, positionally."""
    inputs = draw(case, device, seed)
    if layout:
        inputs = {name: LAYOUTS[layout](tensor) for name, tensor in inputs.items()}
    given = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    statics = {"eps": 1e-6, "weight_offset": 0.0, "group_size": None, "norm_before_gate": False, "out_dtype": None}
    chosen = options(case)
    return (*map(given.get, room.arguments), *(chosen.get(name, value) for name, value in statics.items()))


@pytest.mark.parametrize(CASE, each_case())
def test_opcheck_accepts_the_forward_operator(room: Room, case: Case, device: str, seed: int) -> None:
    torch.library.opcheck(torch.ops.retrograd.rms_norm.default, operator_arguments(room, case, device, seed))


@pytest.mark.parametrize((*CASE, "layout"), each_case(*sorted(set(LAYOUTS) - GRADIENTS_ONLY), cpu=SMALL))
def test_opcheck_accepts_the_forward_operator_on_any_strides(
    room: Room, case: Case, device: str, layout: str, seed: int
) -> None:
    arguments = operator_arguments(room, case, device, seed, layout)
    torch.library.opcheck(
        torch.ops.retrograd.rms_norm.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("parameters", [True, False], ids=["all", "inputs-alone"])
@pytest.mark.parametrize("layout", [None, "transposed", "permuted", "sliced"])
@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_opcheck_accepts_the_backward_operator(
    room: Room, case: Case, device: str, layout: str | None, parameters: bool, seed: int
) -> None:
    with torch.no_grad():
        x, weight, bias, residual, gate, *statics = operator_arguments(room, case, device, seed, layout)
        y, s, rstd = torch.ops.retrograd.rms_norm(x, weight, bias, residual, gate, *statics)
    dsum = None if residual is None else torch.randn_like(s)
    residual_dtype = None if residual is None else residual.dtype
    saved = (x if residual is None else s, gate, weight, bias)
    saved = tuple(None if tensor is None else tensor.detach() for tensor in saved)
    torch.library.opcheck(
        torch.ops.retrograd.rms_norm_backward.default,
        (torch.randn_like(y), dsum, *saved, rstd, x.dtype, residual_dtype, *statics, parameters),
    )


def test_it_agrees_with_pytorch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(7, 96, generator=generator), torch.randn(96, generator=generator)
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-5), torch_rms_norm(x, (96,), weight, 1e-5))


def test_gemma_is_a_weight_around_zero() -> None:
    x, weight = torch.randn(5, 32), torch.randn(32)
    assert torch.equal(rms_norm(x, weight, weight_offset=1.0), rms_norm(x, weight + 1.0))


def test_the_sum_returned_is_what_was_normalised() -> None:
    x, residual = torch.randn(2, 5, 32).bfloat16()
    y, s = rms_norm(x, residual=residual, prenorm=True)
    assert torch.equal(s, x + residual)
    assert torch.equal(y, rms_norm(s))


def test_without_a_residual_the_sum_is_x_itself() -> None:
    x = torch.randn(5, 32)
    assert rms_norm(x, prenorm=True)[1] is x


def test_a_row_of_zeros_gives_zeros_and_finite_gradients() -> None:
    x = torch.zeros(3, 16, requires_grad=True)
    y = rms_norm(x, torch.ones(16))
    y.sum().backward()
    assert torch.equal(y, torch.zeros(3, 16))
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_squares_that_float16_cannot_hold_do_not_overflow() -> None:
    x = torch.full((2, 64), 60000.0, dtype=torch.float16)
    assert torch.equal(rms_norm(x), torch.ones(2, 64, dtype=torch.float16))


def test_a_nan_stays_in_its_row() -> None:
    x = torch.randn(3, 16)
    clean = rms_norm(x)
    x[1, 4] = torch.nan
    y = rms_norm(x)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], clean[::2])


def test_changing_the_stream_in_place_is_noticed_in_the_backward_pass() -> None:
    x, residual = (torch.randn(4, 16, requires_grad=True) for _ in range(2))
    y, stream = rms_norm(x, residual=residual, prenorm=True)
    with torch.no_grad():
        stream += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_it_runs_on_the_meta_device_and_in_inference_mode() -> None:
    assert rms_norm(X.to("meta"), W.to("meta")).shape == X.shape
    with torch.inference_mode():
        assert rms_norm(X, W).is_inference()


def test_torch_func_grad_gives_the_gradient(seed: int) -> None:
    x, weight = torch.randn(5, 32), torch.randn(32)
    found = torch.func.grad(lambda w: rms_norm(x, w).sum())(weight)
    expected = call(rms_norm, {"x": x, "weight": weight}, {}, [torch.ones(5, 32)])["d weight"]
    assert torch.equal(found, expected)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_gradients_that_nobody_wants_are_not_computed(room: Room, case: Case, device: str, seed: int) -> None:
    inputs, _ = drawn(room, case, device, seed)
    made = rms_norm(**inputs, **options(case))
    assert not any(tensor.requires_grad for tensor in (made if isinstance(made, tuple) else (made,)))
