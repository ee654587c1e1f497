"""Helpers shared by the tests of ssd in PyTorch and of its kernels in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from retrograd import ssd
from retrograd.core.torch.op import bind, bind_kernels
from retrograd.core.torch.xp import torch_namespace
from retrograd.ops.ssd import reference
from retrograd.ops.ssd.cases import case
from retrograd.ops.ssd.generation import SSD_PREFILL
from retrograd.ops.ssd.op import OP
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import Arrays, draw, leaves, upcast

IN_TIME = ("x", "dt", "B", "C")


def drawn(seed: int, shape: tuple[int, int, int, int, int, int], **arguments: Any) -> Any:
    """The arrays of a plain call, in float32."""
    return draw(case("drawn", shape, dtype="float32", given=frozenset(), **arguments), "cpu", seed)


@torch.no_grad()
def check_prefill(inputs: Arrays, settings: dict[str, Any]) -> None:
    """One call of the kernels for Hopper has the bits of calls of `ssd`."""
    arrays, _ = OP.complete(inputs)
    xp = torch_namespace()
    y, window = SSD_PREFILL.run(xp, None, arrays, settings, bind_kernels(SSD_PREFILL))  # without an `ssd` to call
    expected, in_two = SSD_PREFILL.run(xp, bind(OP), arrays, settings)
    assert y.isfinite().all()
    assert_same_bits({"y": y, **window._asdict()}, {"y": expected, **in_two._asdict()}, "one call")


def check_reset(rate: float, length: float, seed: int, rows: int = 2, heads: int = 3) -> None:
    """After a step with a log decay of -rate * length, earlier steps have no effect, and the results are accurate.

    Other step sizes are about 0.1 / rate, and x is about `rate`; all other values are of ordinary size.
    """
    at, steps = 100, 140
    shape = (rows, steps, heads, 4, 1, 4)
    inputs, other = (reset(drawn(s, shape, initial_state=True), rate, length, at) for s in (seed, seed + 1))
    found = from_step(ssd, inputs, at)
    for name in IN_TIME:
        first = 0 if name == "dt" else at  # earlier step sizes enter later sums and change their rounding
        other[name][:, first:] = inputs[name][:, first:]
    changed = from_step(ssd, other, at)
    assert_same_bits({n: changed[n] for n in ("y", "state")}, {n: found[n] for n in ("y", "state")}, "the past")
    assert not found["d initial_state"].any()
    for name in ("d x", "d B", "d C"):
        assert not found[name][:, :at].any(), name

    behind = {n: upcast(t[:, at:] if n in IN_TIME else t) for n, t in inputs.items() if n != "initial_state"}
    exact = from_step(reference.ssd, behind, 0)
    sizes = from_step(reference.ssd, behind | {n: behind[n].abs() for n in ("x", "B", "C")}, 0)
    # Sums of log decays are below 256, so that each of at most 40 additions between two steps rounds by 2^-17 at most,
    # and exp turns this into a factor. Sums of 40 products add less than the same error again.
    bound = 40 * 2.0**-16
    for name, tensor in exact.items():
        mine = found[name][:, at:] if name.removeprefix("d ") in IN_TIME else found[name]
        assert ((mine - tensor).abs() <= bound * sizes[name]).all(), name


def reset(inputs: Arrays, rate: float, length: float, at: int) -> Arrays:
    """The inputs with other step sizes; step `at` has size `length`, which erases the state, and adds nothing to it."""
    inputs["A"] = torch.full_like(inputs["A"], -rate)
    inputs["x"], inputs["dt"] = inputs["x"] * rate, inputs["dt"].abs() / rate
    inputs["x"][:, at], inputs["dt"][:, at] = 0, length
    return inputs


def from_step(function: Callable[..., Any], given: Arrays, at: int) -> Arrays:
    """The results from step `at` on, and the gradients of their sum."""
    inputs = leaves(given)
    y, state = function(**inputs, return_final_state=True)
    names = [name for name in inputs if name not in ("A", "dt")]
    found = torch.autograd.grad(y[:, at:].sum() + state.sum(), [inputs[name] for name in names])
    gradients = {f"d {name}": gradient for name, gradient in zip(names, found, strict=True)}
    return {"y": y.detach()[:, at:], "state": state.detach(), **gradients}


def check_decayed(function: Callable[..., Any]) -> None:
    """A gradient by way of the final state alone keeps its digits where the state decays almost fully in each step.

    With x, dt, B and C of ones, the state after two steps is exp(A) + 1, and its gradient with respect to A is exp(A).
    """
    A = torch.tensor([-8.0, -16.0, -20.0, -40.0], requires_grad=True)
    ones = torch.ones(1, 2, len(A), 1)
    _, state = function(ones, ones[..., 0], A, ones[:, :, :1], ones[:, :, :1], return_final_state=True)
    (dA,) = torch.autograd.grad(state.sum(), A)
    # Sums of log decays are below 128 in base 2: each rounds by at most 2^-18, and exp turns this into a factor.
    torch.testing.assert_close(dA, A.detach().exp(), rtol=2.0**-16, atol=0.0)
