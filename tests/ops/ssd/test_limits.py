"""ssd's `dt_limit`, an option that is a tuple: its effect, accepted forms, and refusals on every calling path."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from checks.integration import PassThrough
from torch import Tensor

import retrograd
import retrograd.jax
from retrograd.testing.draw import leaves

B, T, H, P, N = 2, 5, 2, 3, 4
LIMIT = (0.1, 0.5)
# Step sizes below the limit, at its ends, within and above.
DT = torch.tensor([0.05, 0.1, 0.3, 0.5, 0.7])
WITHIN = torch.tensor([False, True, True, True, False])

REFUSED: list[tuple[Any, type[Exception], str]] = [
    ((1.0,), ValueError, "dt_limit is (1.0,), expected (low, high) with low <= high"),
    ((1.0, 2.0, 3.0), ValueError, "dt_limit is (1.0, 2.0, 3.0), expected (low, high) with low <= high"),
    ([], ValueError, "dt_limit is (), expected (low, high) with low <= high"),
    ((2.0, 1.0), ValueError, "dt_limit is (2.0, 1.0), expected (low, high) with low <= high"),
    ((nan, 1.0), ValueError, "dt_limit is (nan, 1.0), expected (low, high) with low <= high"),
    ((1.0, nan), ValueError, "dt_limit is (1.0, nan), expected (low, high) with low <= high"),
    ((0.0, 10**400), ValueError, "dt_limit[1] is an int of 1329 bits, expected at most 1023 bits"),
    ("x", TypeError, "dt_limit is str, expected a tuple of floats"),
    (None, TypeError, "dt_limit is NoneType, expected a tuple of floats"),
    (True, TypeError, "dt_limit is bool, expected a tuple of floats"),
    (3.0, TypeError, "dt_limit is float, expected a tuple of floats"),
    ({}, TypeError, "dt_limit is dict, expected a tuple of floats"),
    (np.ones(2), TypeError, "dt_limit is ndarray, expected a tuple of floats"),
    ((True, 1.0), TypeError, "dt_limit[0] is bool, expected a float"),
    ((0.0, None), TypeError, "dt_limit[1] is NoneType, expected a float"),
    (("0", 1.0), TypeError, "dt_limit[0] is str, expected a float"),
    ((1j, 1.0), TypeError, "dt_limit[0] is complex, expected a float"),
    ([[1], [2]], TypeError, "dt_limit[0] is list, expected a float"),
]
each_refused = pytest.mark.parametrize(("limit", "kind", "text"), REFUSED, ids=[str(r[0])[:20] for r in REFUSED])


class Subclass(Tensor):
    pass


def arrays(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"x": (B, T, H, P), "A": (H,), "B": (B, T, 1, N), "C": (B, T, 1, N)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return drawn | {"A": -drawn["A"].exp(), "dt": DT[:, None].expand(B, T, H).contiguous()}


def step() -> dict[str, Any]:
    """The arrays of `ssd_update`."""
    arguments = {name: t[:, 0] if name != "A" else t for name, t in arrays().items()}
    return {"state": torch.ones(B, H, P, N), **arguments}


def in_jax(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: jnp.asarray(t.numpy()) for name, t in tensors.items()}


def directly(limit: Any) -> Any:
    return retrograd.ssd(**arrays(), dt_limit=limit)


def with_gradients(limit: Any) -> Any:
    return retrograd.ssd(**leaves(arrays()), dt_limit=limit)  # type: ignore[call-overload]


def under_a_dispatch_mode(limit: Any) -> Any:
    with PassThrough():
        return directly(limit)


def as_a_subclass(limit: Any) -> Any:
    arguments: dict[str, Any] = {name: t.as_subclass(Subclass) for name, t in arrays().items()}
    return retrograd.ssd(**arguments, dt_limit=limit)


def mapped(limit: Any) -> Any:
    arguments = arrays()
    x = arguments.pop("x")
    return torch.vmap(lambda x: retrograd.ssd(x, **arguments, dt_limit=limit))(x[None])[0]


def with_jax(limit: Any) -> Any:
    return retrograd.jax.ssd(**in_jax(arrays()), dt_limit=limit)


def under_jit(limit: Any) -> Any:
    return jax.jit(lambda arguments: retrograd.jax.ssd(**arguments, dt_limit=limit))(in_jax(arrays()))


EAGER = [directly, with_gradients, under_a_dispatch_mode, as_a_subclass, mapped]
WAYS: list[Callable[[Any], Any]] = [*EAGER, with_jax, under_jit]
UPDATES: list[Callable[[Any], Any]] = [
    lambda limit: retrograd.ssd_update(**step(), dt_limit=limit),
    lambda limit: retrograd.jax.ssd_update(**in_jax(step()), dt_limit=limit),
]


def compiled(function: Any, dynamic: bool | None = None) -> Any:
    """(arrays, limit) -> the results of a function."""
    torch._dynamo.reset()

    def call(arguments: dict[str, Tensor], limit: Any) -> Any:
        return function(**arguments, dt_limit=limit)

    return torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)


@each_refused
def test_what_is_no_limit_is_refused_by_name_on_every_way_in(limit: Any, kind: type[Exception], text: str) -> None:
    for op, ways in (("ssd", WAYS), ("ssd_update", UPDATES)):
        for way in ways:
            with pytest.raises(kind) as raised:
                way(limit)
            assert str(raised.value) == f"{op}: {text}"


@each_refused
def test_a_compiled_function_says_the_same(limit: Any, kind: type[Exception], text: str) -> None:
    # PyTorch wraps an error raised during tracing in its own.
    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.TorchRuntimeError)) as raised:
        compiled(retrograd.ssd)(arrays(), limit)
    assert f"{kind.__name__}('ssd: {text}')" in str(raised.value)


def test_a_call_that_was_taken_lets_none_in_that_python_calls_equal() -> None:
    assert (1.0, 2.0) == (True, 2.0) == (1 + 0j, 2.0)
    for way in EAGER:
        way((1.0, 2.0))
        for limit in ((True, 2.0), (1 + 0j, 2.0)):
            with pytest.raises(TypeError, match=r"^ssd: dt_limit\[0\] is (bool|complex), expected a float$"):
                way(limit)


@pytest.mark.parametrize("limit", [[0.1, 0.5], (0, 1), [0, inf], (-inf, inf), (0.3, 0.3)], ids=str)
def test_a_limit_may_be_a_list_ints_and_infinite_on_every_way_in(limit: Any) -> None:
    arguments = arrays()
    expected = retrograd.ssd(**{**arguments, "dt": arguments["dt"].clamp(*limit)})
    for way in EAGER:
        assert torch.equal(way(limit).detach().as_subclass(Tensor), expected)
    assert torch.equal(compiled(retrograd.ssd)(arguments, limit), expected)
    wanted = retrograd.ssd_update(**{**step(), "dt": step()["dt"].clamp(*limit)})
    assert all(torch.equal(a, b) for a, b in zip(UPDATES[0](limit), wanted, strict=True))


def test_in_jax_a_limit_is_given_closed_over_or_static() -> None:
    expected = directly(LIMIT)
    jitted = jax.jit(retrograd.jax.ssd, static_argnames="dt_limit")
    for found in (with_jax(list(LIMIT)), under_jit([0.1, 0.5]), jitted(**in_jax(arrays()), dt_limit=LIMIT)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(UPDATES[1](list(LIMIT)), UPDATES[0](LIMIT), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_function_compiled_for_any_numbers_takes_one_limit_after_another() -> None:
    def gradient(y: Tensor, arguments: dict[str, Tensor]) -> Tensor:
        return torch.autograd.grad(y.square().sum(), arguments["dt"])[0]

    function = compiled(retrograd.ssd, dynamic=True)
    arguments: dict[str, Any] = leaves(arrays())
    for limit in (LIMIT, (0.0, inf)):
        found, expected = function(arguments, limit), retrograd.ssd(**arguments, dt_limit=limit)
        assert torch.equal(found, expected)
        assert torch.equal(gradient(found, arguments), gradient(expected, arguments))
    update = compiled(retrograd.ssd_update)
    for limit in (LIMIT, (0.0, inf)):
        for a, b in zip(update(step(), limit), UPDATES[0](limit), strict=True):
            assert torch.equal(a, b)


def gradients(tensors: dict[str, Tensor], seed: int, **options: Any) -> dict[str, Tensor]:
    inputs: dict[str, Any] = leaves(tensors)
    y = retrograd.ssd(**inputs, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    return dict(zip(inputs, torch.autograd.grad(y, list(inputs.values()), dy), strict=True))


def test_a_step_size_outside_has_no_gradient_and_one_at_the_limit_has_all_of_it(seed: int) -> None:
    arguments = arrays(seed)
    found = gradients(arguments, seed, dt_limit=(DT[1].item(), DT[3].item()))
    assert torch.equal(found["dt"] != 0, WITHIN[:, None].expand(B, T, H))
    clamped = gradients({**arguments, "dt": arguments["dt"].clamp(DT[1], DT[3])}, seed)
    assert torch.equal(found.pop("dt"), clamped.pop("dt") * WITHIN[:, None])
    assert all(torch.equal(gradient, clamped[name]) for name, gradient in found.items())


def test_softplus_comes_before_the_limit_and_its_slope_into_the_gradient(seed: int) -> None:
    # Not at its ends: softplus of its inverse need not be bitwise equal.
    limit = (DT[1].item() - 1e-3, DT[3].item() + 1e-3)
    arguments = {**arrays(seed), "dt_bias": torch.full((H,), 0.25)}
    delta = arguments["dt"]
    raw = torch.log(torch.expm1(delta)) - 0.25
    found = gradients({**arguments, "dt": raw}, seed, dt_softplus=True, dt_limit=limit)
    clamped = gradients({**arguments, "dt": delta.clamp(*limit) - 0.25}, seed)
    expected = clamped["dt"] * torch.sigmoid(raw + 0.25) * WITHIN[:, None]
    clamped |= {"dt": expected, "dt_bias": expected.sum((0, 1))}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, clamped[name], rtol=1e-4, atol=1e-5)
    assert torch.equal(found["dt"] != 0, WITHIN[:, None].expand(B, T, H))


def test_within_a_limit_there_are_second_derivatives_and_outside_there_are_none() -> None:
    names, tensors = zip(*arrays().items(), strict=True)
    inputs = [tensor[:1].double() if tensor.dim() > 1 else tensor.double() for tensor in tensors]

    def call(*tensors: Tensor) -> Tensor:
        return retrograd.ssd(**dict(zip(names, tensors, strict=True)), dt_limit=(0.08, 0.55))

    assert torch.autograd.gradgradcheck(call, [tensor.requires_grad_() for tensor in inputs], fast_mode=True)


class Limited(torch.nn.Module):
    """ssd with a limit as read from a configuration."""

    def forward(self, given: dict[str, Any]) -> Tensor:
        limit: Any = list(LIMIT)
        return retrograd.ssd(**given, dt_limit=limit)


def test_a_call_with_a_limit_is_exported_for_every_length() -> None:
    def of(steps: int) -> dict[str, Any]:
        return {n: t.repeat(1, steps // T, *[1] * (t.dim() - 2)) if n != "A" else t for n, t in arrays().items()}

    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {name: None if name == "A" else {1: length} for name in arrays()}
    exported = torch.export.export(Limited(), (of(40),), dynamic_shapes=(shapes,)).module()
    for steps in (5, 200):
        assert torch.equal(exported(of(steps)), Limited()(of(steps)))


def test_a_step_size_that_is_no_number_is_not_made_one() -> None:
    arguments = arrays()
    arguments["dt"][0, 2, 1] = nan
    y = retrograd.ssd(**arguments, dt_limit=LIMIT)
    assert y[0, 2:, 1].isnan().all()
    assert y[0, :, 0].isfinite().all()
    assert y[1].isfinite().all()
