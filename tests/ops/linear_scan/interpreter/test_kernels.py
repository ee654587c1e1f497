"""linear_scan's kernels beyond the tiny cases: many tiles, many groups of tiles, both ways to find a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.core.arch import SUPPORTED
from retrograd.core.program import Layout
from retrograd.core.spec import Param
from retrograd.core.torch.launch import dtype_name, interpret
from retrograd.ops.linear_scan import op, reference
from retrograd.ops.linear_scan.triton.plan import Tile
from retrograd.testing.compare import assert_same_bits

pytestmark = pytest.mark.slow  # test_kernels.py runs the contract every time

Arrays = dict[str, Tensor]

TILE = Tile(steps=2, levels=2, channels=4)  # tiles of 8 steps, groups of 32
OP = replace(op.OP, replan=lambda plan: replace(plan, tile=TILE))
CALLS: dict[str, dict[str, Any]] = {
    "states": {"T": 70, "D": 5, "initial": True, "return_final_state": True},
    "reverse": {"T": 65, "D": 4, "reverse": True},
    "one-tile": {"T": 8, "D": 3, "initial": True, "return_final_state": True},
    "whole-groups": {"T": 64, "D": 3, "return_final_state": True},
    "complex": {"T": 40, "D": 3, "dtype": torch.complex64, "initial": True, "return_final_state": True},
    "half": {"T": 40, "D": 3, "dtype": torch.float16, "a_dtype": torch.float32},
    "shared": {"T": 40, "D": 6, "a": (1, 40, 1), "initial": True},
    "packed": {"T": 75, "D": 5, "packed": [2, 3, 3, 43, 74], "initial": True, "return_final_state": True},
    "packed-reverse": {"T": 40, "D": 5, "packed": [0, 33, 40], "reverse": True, "a": (1, 40, 1)},
}


def drawn(
    seed: int,
    T: int,
    D: int,
    *,
    B: int = 2,
    dtype: torch.dtype = torch.float32,
    a_dtype: torch.dtype | None = None,
    a: tuple[int, int, int] | None = None,
    initial: bool = False,
    packed: list[int] | None = None,
    **options: bool,
) -> tuple[Arrays, dict[str, bool]]:
    generator = torch.Generator().manual_seed(seed)
    state = torch.promote_types(dtype, torch.float32)
    B = 1 if packed else B
    decay = torch.sigmoid(torch.randn(a or (B, T, D), generator=generator) + 1)
    if dtype.is_complex:
        decay = torch.polar(decay, 3 * torch.randn(decay.shape, generator=generator))
    inputs = {"a": decay.to(a_dtype or dtype), "b": torch.randn(B, T, D, generator=generator, dtype=state).to(dtype)}
    if initial:
        inputs["initial_state"] = torch.randn(len(packed) - 1 if packed else B, D, generator=generator, dtype=state)
    if packed:
        inputs["cu_seqlens"] = torch.tensor(packed, dtype=torch.int32)
    return inputs, {"reverse": False, "return_final_state": False} | options


def run(inputs: Arrays, options: dict[str, bool], seed: int, arch: str = "sm_90") -> Arrays:
    """Results and gradients, by name."""
    spec = OP.spec({name: Param(tuple(t.shape), dtype_name(t.dtype)) for name, t in inputs.items()}, options)

    def go(call: Any, arrays: Arrays) -> Arrays:
        arguments = [arrays[name] for name in call.inputs]
        layouts = {name: Layout(t.stride()) for name, t in zip(call.inputs, arguments, strict=True)}
        program = call.program(layouts, SUPPORTED[arch])
        return {a.name: t for a, t in zip(program.outputs, interpret(program, arguments), strict=True)}

    outputs = go(OP.forward(spec), inputs)
    generator = torch.Generator().manual_seed(seed + 1)
    gradients = {f"d{name}": torch.randn(t.shape, dtype=t.dtype, generator=generator) for name, t in outputs.items()}
    wanted = frozenset(inputs).difference(OP.indices)
    return outputs | gradients | go(OP.backward(spec, wanted), inputs | outputs | gradients)


def exact(inputs: Arrays, options: dict[str, bool], found: Arrays) -> Arrays:
    """The reference in float64, with the same incoming gradients."""
    leaves = {
        name: t if name in OP.indices else t.to(torch.promote_types(t.dtype, torch.float64)).requires_grad_()
        for name, t in inputs.items()
    }
    rest = {name: t for name, t in leaves.items() if name not in ("a", "b")}
    outputs = reference.linear_scan(leaves["a"], leaves["b"], **rest, **options)  # type: ignore[arg-type]
    results = dict(zip(OP.results, outputs if isinstance(outputs, tuple) else (outputs,), strict=False))
    names = [name for name in leaves if name not in OP.indices]
    incoming = [found[f"d{name}"].to(t.dtype) for name, t in results.items()]
    gradients = torch.autograd.grad(list(results.values()), [leaves[name] for name in names], incoming)
    return {name: t.detach() for name, t in results.items()} | {
        f"d{name}": t for name, t in zip(names, gradients, strict=True)
    }


@pytest.mark.parametrize("name", CALLS)
def test_many_tiles_compute_the_recurrence_and_write_every_element(name: str, seed: int) -> None:
    inputs, options = drawn(seed, **CALLS[name])
    found = run(inputs, options, seed)
    tolerance = 3e-3 if name == "half" else 2e-6
    for quantity, expected in exact(inputs, options, found).items():
        error = (found[quantity] - expected).abs().max() / expected.abs().max()
        assert error < tolerance, f"{name}: error of {quantity} is {error:.3g}"


@pytest.mark.parametrize("name", CALLS)
def test_states_handed_on_and_states_found_before_give_the_same_bits(name: str, seed: int) -> None:
    inputs, options = drawn(seed, **CALLS[name])
    assert_same_bits(run(inputs, options, seed, "gfx942"), run(inputs, options, seed, "sm_90"), name)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_packed_sequence_has_the_same_bits_alone(reverse: bool, seed: int) -> None:
    options = {"packed": [0, 37, 38, 80], "initial": True, "return_final_state": True, "reverse": reverse}
    inputs, static = drawn(seed, 80, 5, **options)  # type: ignore[arg-type]
    together = run(inputs, static, seed)
    part = {name: t[:, 38:] for name, t in inputs.items() if name in ("a", "b")}
    alone = run(part | {"initial_state": inputs["initial_state"][2:]}, static, seed)
    assert_same_bits(alone, alone | {"h": together["h"][:, 38:], "final_state": together["final_state"][2:]}, "alone")


@pytest.mark.parametrize("bounds", [[-5, 30, 10, 500], [900, 3, -1, 2], [40, 40, 40, 40], [17, 17, 16, 33]])
def test_any_cu_seqlens_stays_in_bounds_and_leaves_nothing_unwritten(bounds: list[int], seed: int) -> None:
    inputs, options = drawn(seed, 40, 5, packed=bounds, initial=True, return_final_state=True)
    for name, tensor in run(inputs, options, seed).items():
        assert torch.isfinite(tensor).all(), f"{name} has elements that no program wrote"


def test_a_product_that_overflows_does_not_touch_a_state_of_zero(seed: int) -> None:
    a = torch.full((1, 70, 3), 1e30)
    b = torch.zeros(1, 70, 3)
    b[:, -1] = 1.0
    found = run({"a": a, "b": b}, {"reverse": False, "return_final_state": False}, seed)
    assert torch.equal(found["h"], b)


def test_strides_of_zero_and_transposed_arrays_are_taken_as_they_lie(seed: int) -> None:
    inputs, options = drawn(seed, 40, 6)
    moved = {"a": inputs["a"].transpose(1, 2).contiguous().transpose(1, 2), "b": inputs["b"][:, :, :1].expand(2, 40, 6)}
    dense = {name: tensor.contiguous() for name, tensor in moved.items()}
    assert_same_bits(run(moved, options, seed), run(dense, options, seed), "strided")
