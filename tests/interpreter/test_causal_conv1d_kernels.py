"""causal_conv1d's kernels where tiny cases would not take them: many programs, lanes that end early, other strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.ops.causal_conv1d import plan
from retrograd.ops.causal_conv1d.cases import case as case_of
from retrograd.ops.causal_conv1d.room import ROOM
from retrograd.testing import contract
from retrograd.testing.compare import assert_same_bits, assert_within_budget
from retrograd.testing.draw import Arrays, call, options, plain_and_exact
from retrograd.testing.interpreter import as_float16, forget_plans

pytestmark = pytest.mark.slow  # test_kernels.py has the contract in every run

EACH = [pytest.param(as_float16(ROOM.case(name)), id=name) for name in ("width_3", "states", "packed_states")]


def long(T: int, dtype: str) -> Case:
    """A call of several chunks in the plans of these tests."""
    given = {"activation": "silu", "return_final_state": True}
    return case_of("long", (2, T, 19), dtype=dtype, bias=True, initial=True, **given)  # type: ignore[arg-type]


def small_walk(*_: object) -> plan.Walk:
    return plan.Walk(lanes=2, channels=16, unroll=4, num_warps=1, parallel=10**9)


def small_vectors(spec: object, _: object) -> plan.Vectors:
    vector = 16 // (4 if spec.x.dtype == "float32" else 2)  # type: ignore[attr-defined]
    return plan.Vectors(channels=16, blocks=2, vector=vector, num_warps=1, parallel=10**9)


@contextmanager
def smaller() -> Iterator[None]:
    """Within, tiles are of a few steps, so that small calls take many programs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward", "backward"):
            patch.setattr(plan, name, small_walk)
            patch.setattr(plan, f"{name}_time", small_vectors)
        forget_plans()
        yield
    forget_plans()


def in_time(tensor: Tensor) -> Tensor:
    """(B, T, D) that lies as (B, D, T) in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def as_it_is(tensor: Tensor) -> Tensor:
    return tensor


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "channels": (as_it_is, as_it_is),
    "x in time": (in_time, as_it_is),
    "dy in time": (as_it_is, in_time),
    "both in time": (in_time, in_time),
}


def run(case: Case, inputs: Arrays, gradients: list[Tensor]) -> Arrays:
    return call(ROOM.torch, inputs, options(case), gradients)


@pytest.mark.parametrize("case", EACH)
def test_many_programs_keep_the_error_budget(case: Case, seed: int) -> None:
    with smaller():
        contract.check_errors(ROOM, case, "cpu", seed)


@pytest.mark.parametrize("T", [24, 37, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_follow_the_strides(layout: str, T: int, seed: int) -> None:
    case = long(T, "float32" if T == 24 else "float16")
    lay_x, lay_dy = LAYOUTS[layout]
    inputs, (dy, dfinal) = contract.drawn(ROOM, case, "cpu", seed)
    dense = run(case, inputs, [dy, dfinal])
    laid = inputs | {"x": lay_x(inputs["x"])}
    with smaller():
        found = run(case, laid, [lay_dy(dy), dfinal])
    per_row = ("y", "output 1", "d x", "d initial_state")
    assert_same_bits({n: found[n] for n in per_row}, {n: dense[n] for n in per_row}, f"{layout}, T={T}")
    plain, exact = plain_and_exact(ROOM.reference, case, laid, [dy, dfinal])
    assert_within_budget([(found, plain, exact)], f"{layout}, T={T}")


def test_contiguous_time_takes_its_own_kernels() -> None:
    seen: list[str] = []

    def noted(name: str, original: Callable[..., plan.Vectors]) -> Callable[..., plan.Vectors]:
        def planned(*given: object) -> plan.Vectors:
            seen.append(name)
            return original(*given)

        return planned

    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward_time", "backward_time"):
            patch.setattr(plan, name, noted(name, getattr(plan, name)))
        forget_plans()
        x = in_time(torch.randn(2, 16, 8)).requires_grad_()
        ROOM.torch(x, torch.randn(8, 4), activation="silu").sum().backward()
    forget_plans()
    assert seen == ["forward_time", "backward_time"]


@pytest.mark.parametrize("bounds", [(2, 5, 9), (0, 12, 99), (-3, 4, 12), (0, 9, 5, 12), (12, 12), (99, 7), (0,)])
@pytest.mark.parametrize("small", [False, True])
def test_whatever_cu_seqlens_holds_every_element_is_written(bounds: tuple[int, ...], small: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    S = len(bounds) - 1
    x, weight, state = (torch.randn(s, generator=generator).requires_grad_() for s in ((1, 12, 4), (4, 4), (S, 4, 3)))
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)

    def run_all() -> list[Tensor]:
        y, final = ROOM.torch(
            x, weight, torch.ones(4), activation="silu", initial_state=state, cu_seqlens=cu_seqlens,
            return_final_state=True,
        )  # fmt: skip
        leaves = (x, weight, state)
        return [y, final, *torch.autograd.grad((y, final), leaves, (torch.ones_like(y), torch.ones_like(final)))]

    if small:
        with smaller():
            made = run_all()
    else:
        made = run_all()
    assert all(torch.isfinite(t).all() for t in made)
    outside = [t for t in range(12) if t < bounds[0] or t >= bounds[-1]]
    assert not made[0][:, outside].any()
    assert not made[2][:, outside].any()


def test_sequences_may_be_cut_from_a_wider_array_of_numbers(seed: int) -> None:
    x, weight = (torch.randn(s, generator=torch.Generator().manual_seed(seed)) for s in ((1, 12, 4), (4, 4)))
    bounds = torch.tensor([0, -1, 5, -1, 12, -1], dtype=torch.int32)
    strided = ROOM.torch(x, weight, cu_seqlens=bounds[::2])
    assert torch.equal(strided, ROOM.torch(x, weight, cu_seqlens=bounds[::2].contiguous()))
