"""causal_conv1d's kernels beyond the tiny cases: many programs, lanes that end early, other strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from checks import contract
from checks.interpreter import as_float16
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.causal_conv1d.cases import case as case_of
from retrograd.ops.causal_conv1d.info import INFO
from retrograd.ops.causal_conv1d.triton.plan import Plan, Vectors, Walk
from retrograd.testing.compare import assert_same_bits, assert_within_budget
from retrograd.testing.draw import Arrays, call, options, plain_and_exact

pytestmark = pytest.mark.slow  # test_kernels.py runs the contract every time

EACH = [pytest.param(as_float16(INFO.case(name)), id=name) for name in ("width_3", "states", "packed_states")]


def long(T: int, dtype: str) -> Case:
    """A case of several chunks in the plans of these tests."""
    options = {"activation": "silu", "return_final_state": True}
    return case_of("long", (2, T, 19), dtype=dtype, bias=True, initial=True, **options)  # type: ignore[arg-type]


def smaller(planned: Plan) -> Plan:
    """The plan with tiles of a few steps, so that small calls have many programs."""
    walk = Walk(lanes=2, channels=16, unroll=4, num_warps=1, parallel=10**9)
    vectors = Vectors(channels=16, blocks=2, vector=planned.vectors.vector, num_warps=1, parallel=10**9)
    return Plan(walk, vectors)


SMALL = INFO.variant(replan=smaller)


def in_time(tensor: Tensor) -> Tensor:
    """(B, T, D) stored as (B, D, T)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def as_it_is(tensor: Tensor) -> Tensor:
    return tensor


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "channels": (as_it_is, as_it_is),
    "x in time": (in_time, as_it_is),
    "dy in time": (as_it_is, in_time),
    "both in time": (in_time, in_time),
}


def run(info: OpInfo, case: Case, inputs: Arrays, gradients: list[Tensor]) -> Arrays:
    return call(info.torch, inputs, options(case), gradients)


@pytest.mark.parametrize("case", EACH)
def test_many_programs_keep_the_error_budget(case: Case, seed: int) -> None:
    contract.check_errors(SMALL, case, "cpu", seed)


@pytest.mark.parametrize("T", [24, 37, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_follow_the_strides(layout: str, T: int, seed: int) -> None:
    case = long(T, "float32" if T == 24 else "float16")
    lay_x, lay_dy = LAYOUTS[layout]
    inputs, (dy, dfinal) = contract.drawn(INFO, case, "cpu", seed)
    dense = run(INFO, case, inputs, [dy, dfinal])
    laid = inputs | {"x": lay_x(inputs["x"])}
    found = run(SMALL, case, laid, [lay_dy(dy), dfinal])
    per_row = ("y", "output 1", "d x", "d initial_state")
    assert_same_bits({n: found[n] for n in per_row}, {n: dense[n] for n in per_row}, f"{layout}, T={T}")
    plain, exact = plain_and_exact(INFO.reference, case, laid, [dy, dfinal])
    assert_within_budget([(found, plain, exact)], f"{layout}, T={T}")


def test_contiguous_time_takes_its_own_kernels() -> None:
    def without_walks(planned: Plan) -> Plan:
        return replace(planned, walk=None)  # type: ignore[arg-type]

    conv = INFO.variant(replan=without_walks).torch
    x, weight = torch.randn(2, 16, 8), torch.randn(8, 4)
    conv(in_time(x).requires_grad_(), weight, activation="silu").sum().backward()
    with pytest.raises(AttributeError, match="'NoneType'"):
        conv(x, weight, activation="silu")


@pytest.mark.parametrize("bounds", [(2, 5, 9), (0, 12, 99), (-3, 4, 12), (0, 9, 5, 12), (12, 12), (99, 7), (0,)])
@pytest.mark.parametrize("small", [False, True])
def test_whatever_cu_seqlens_holds_every_element_is_written(bounds: tuple[int, ...], small: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    S = len(bounds) - 1
    x, weight, state = (torch.randn(s, generator=generator).requires_grad_() for s in ((1, 12, 4), (4, 4), (S, 4, 3)))
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)

    def run_all(info: OpInfo) -> list[Tensor]:
        y, final = info.torch(
            x, weight, torch.ones(4), activation="silu", initial_state=state, cu_seqlens=cu_seqlens,
            return_final_state=True,
        )  # fmt: skip
        leaves = (x, weight, state)
        return [y, final, *torch.autograd.grad((y, final), leaves, (torch.ones_like(y), torch.ones_like(final)))]

    # The interpreter's tensors are on the CPU, where such boundaries are refused; on a GPU they are not checked.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrograd.core.torch.passes.check_nondecreasing", lambda *_: None)
        outputs = run_all(SMALL if small else INFO)
    assert all(torch.isfinite(t).all() for t in outputs)
    outside = [t for t in range(12) if t < bounds[0] or t >= bounds[-1]]
    assert not outputs[0][:, outside].any()
    assert not outputs[2][:, outside].any()


def test_sequences_may_be_cut_from_a_wider_array_of_numbers(seed: int) -> None:
    x, weight = (torch.randn(s, generator=torch.Generator().manual_seed(seed)) for s in ((1, 12, 4), (4, 4)))
    bounds = torch.tensor([0, -1, 5, -1, 12, -1], dtype=torch.int32)
    strided = INFO.torch(x, weight, cu_seqlens=bounds[::2])
    assert torch.equal(strided, INFO.torch(x, weight, cu_seqlens=bounds[::2].contiguous()))
