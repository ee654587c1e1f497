"""ssd's kernels in Triton's interpreter on calls with few heads, which take more programs and loops than they look."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from checks import contract
from checks.interpreter import as_float16

from ops.ssd.calls import check_decayed, check_reset
from retrograd.core.arch import SUPPORTED
from retrograd.core.kernels.sequences import Sequences, bounds_of, first_slot, owner_of
from retrograd.core.program import Program
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.xp import torch_namespace
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo, spec_of
from retrograd.ops.ssd import reference
from retrograd.ops.ssd.cases import ALL, case
from retrograd.ops.ssd.hopper.plan import SLOT
from retrograd.ops.ssd.info import INFO
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import call, options, plain_and_exact, upcast

STEPS = 16  # of a slot


# Times the budget. An element of another slice, block or sequence is wrong by its own size, which is more than that;
# an error that is lucky to be so many times smaller in the plain computation, in the one draw, is not met.
SLACK = {"float16": 2.0**6, "float32": 2.0**12}


def check(tried: Case, seed: int, info: OpInfo = INFO) -> None:
    """One draw: what the contract judges closely, of more heads, takes the interpreter minutes."""
    tried = as_float16(tried)
    inputs, gradients = contract.drawn(INFO, tried, "cpu", seed)
    plain, exact = plain_and_exact(INFO.reference, tried, inputs, gradients, INFO.plain)
    found = call(info.torch, inputs, options(tried), gradients)
    assert_within_budget([(found, plain, exact)], tried.name, SLACK[tried.inputs["x"].dtype])


FP32: dict[str, Any] = {"dtype": "float32", **ALL}
QUICK = [
    case("packed with gaps", (1, 75, 2, 4, 1, 4), cu_seqlens=(3, 3, 70, 71), **ALL),
    case("slices and products", (1, 40, 1, 36, 1, 36), wide_D=True, **FP32),
    case("kept states", (1, 140, 1, 4, 1, 4), dt_limit=(0.04, 0.08), **FP32),
]
SLOW = [
    case("more sequences than are looked at together", (1, 140, 1, 4, 1, 4), cu_seqlens=(*range(136), 140), **FP32),
    case("all slices", (2, 70, 2, 256, 1, 256), **ALL),
    case("all slices, fp32", (1, 40, 2, 256, 2, 256), **FP32),
    case("kept states of many", (2, 260, 2, 4, 1, 132), **ALL),
]


@pytest.mark.parametrize(
    "tried",
    [
        *(pytest.param(tried, id=tried.name) for tried in QUICK),
        # Hundreds of programs, or of products: up to a minute each.
        *(pytest.param(tried, id=tried.name, marks=pytest.mark.slow) for tried in SLOW),
    ],
)
def test_kernels_write_every_element_and_take_all_that_belongs_to_it(tried: Case, seed: int) -> None:
    check(tried, seed)


def test_heads_of_a_group_may_take_several_programs(seed: int) -> None:
    few = INFO.variant(replan=lambda tile: replace(tile, heads=2, prepared_heads=2))
    check(case("heads", (1, 10, 3, 4, 1, 4), **FP32), seed, few)


@pytest.mark.parametrize(("rate", "length"), [(1.0, 1e6), pytest.param(1e20, 1e20, marks=pytest.mark.slow)])
def test_a_decay_to_nothing_forgets_all_and_spoils_nothing(rate: float, length: float, seed: int) -> None:
    check_reset(rate, length, seed, rows=1, heads=1)


def test_a_gradient_through_the_final_state_alone_keeps_its_digits() -> None:
    check_decayed(INFO.torch)


@triton.jit
def owners(cu_seqlens_ptr: Any, slots_ptr: Any, T: Any, sequences: Any, STEPS: tl.constexpr) -> None:
    """For each slot its sequence's number, its first step in it, and the sequence's row, first step, length and
    first slot: (slots, 6).
    """
    slot = tl.program_id(0)
    call = Sequences(cu_seqlens_ptr, T, sequences)
    number, step = owner_of(slot, call, STEPS)
    row, first, length = bounds_of(number, call)
    mine = first_slot(number, first, call, STEPS)
    out = slots_ptr + slot * 6
    tl.store(out, number)
    tl.store(out + 1, step)
    tl.store(out + 2, row)
    tl.store(out + 3, first)
    tl.store(out + 4, length)
    tl.store(out + 5, mine)


def test_each_of_many_sequences_has_the_places_of_its_steps_and_no_other_has_them(seed: int) -> None:
    """More than 128, so that a slot looks at two times 128 of them; the first begins late, the last ends early."""
    count = 135
    lengths = torch.randint(0, 3 * STEPS, (count,), generator=torch.Generator().manual_seed(seed))
    lengths[torch.arange(count) % 5 < 4] = 0
    bounds = torch.cat([torch.tensor([5]), 5 + lengths.cumsum(0)]).int()
    T = int(bounds[-1]) + 7
    slots = T // STEPS + count
    found = torch.full((slots, 6), -(10**6), dtype=torch.int32)
    owners[(slots,)](bounds, found, T, count, STEPS)
    taken: dict[int, int] = {}
    for slot, (number, step, row, first, length, mine) in enumerate(found.tolist()):
        assert (row, first, length) == (0, bounds[number], lengths[number])
        assert step == (slot - mine) * STEPS
        if 0 <= step < length:
            taken.update({first + step + j: slot for j in range(min(STEPS, length - step))})
    assert sorted(taken) == list(range(5, T - 7))
    assert len(set(taken.values())) == int((-(-lengths // STEPS)).sum())


@pytest.mark.slow  # the cases that are packed with gaps are in every run
@pytest.mark.parametrize("bounds", [(5, 9, 30), (0, 9, 20), (3, 3, 3), (-4, 9, 99), (0, 20, 10, 34), (34, 34, 34)])
def test_steps_outside_of_any_sequence_get_zeros(bounds: tuple[int, ...], seed: int) -> None:
    """No numbers keep a GPU from giving numbers, and from writing all of them."""
    tried = as_float16(case("outside", (1, 34, 2, 4, 1, 4), cu_seqlens=(0,) * len(bounds), **ALL))
    inputs, gradients = contract.drawn(INFO, tried, "cpu", seed)
    inputs["cu_seqlens"] = torch.tensor(bounds, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrograd.core.torch.passes.check_nondecreasing", lambda *_: None)
        made = call(INFO.torch, inputs, options(tried), gradients)
    for name, tensor in made.items():
        assert torch.isfinite(tensor).all(), name
        if name in ("y", "d x", "d dt", "d B", "d C", "d z"):
            assert not tensor[:, : max(bounds[0], 0)].any(), name
            assert not tensor[:, max(bounds) :].any(), name


def test_the_states_between_kept_ones_are_those_of_the_definition(seed: int) -> None:
    """With N over 128 every second slot has a kept state; the backward pass on Hopper finds the others."""
    bounds = (3, 3, 200, 590)
    tried = as_float16(case("between", (1, 600, 3, 64, 1, 256), cu_seqlens=bounds, initial_state=True))
    inputs, _ = contract.drawn(INFO, tried, "cpu", seed)
    inputs["initial_state"] *= 0.1
    op = INFO.structures["spans of a slot"](INFO).op  # all heads in one program
    assert op is not None
    spec = spec_of(op, tried)
    states = op.forward(spec).portable(torch_namespace(), inputs)["states"]
    program = op.backward(spec, frozenset(inputs)).program({}, SUPPORTED["sm_90"])
    assert program is not None
    beginning = Program(
        program.inputs,
        tuple(array for array in program.scratch if array.name == "middle"),
        tuple(array for array in program.scratch if array.name in ("vectors", "delta")),
        tuple(launch for launch in program.launches if launch.kernel.__name__ in ("prepare", "middle")),
    )
    dy = torch.zeros_like(inputs["x"])
    (found,) = interpret(beginning, [{**inputs, "dy": dy, "states": states}[array.name] for array in program.inputs])
    expected = torch.full_like(found, float("nan"))
    exact: dict[str, Any] = {name: upcast(tensor) for name, tensor in inputs.items()}
    for number, (start, stop) in enumerate(pairwise(bounds)):
        for middle in range(start + SLOT, stop, 2 * SLOT):
            steps = {name: exact[name][:, start:middle] for name in ("x", "dt", "B", "C")}
            start_state = exact["initial_state"][number : number + 1]
            given = {**exact, **steps, "initial_state": start_state}
            given.pop("cu_seqlens")
            _, state = reference.ssd(**given, **{**options(tried), "return_final_state": True})
            slot = start // (2 * SLOT) + number + (middle - start) // (2 * SLOT)
            expected[0, slot] = state[0]
    written = ~expected[0, :, 0, 0, 0].isnan()
    assert written.sum() == 3
    assert torch.equal(written, ~found[0, :, 0, 0, 0].isnan())
    error = (found - expected)[0, written].norm() / expected[0, written].norm()
    assert error < 2.0**-10
