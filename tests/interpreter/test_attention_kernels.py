"""The kernels of attention, which no call reaches yet, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retrograd.core.cases import Case
from retrograd.core.op import Implementation, names
from retrograd.core.room import Room
from retrograd.ops.attention.triton.plan import Plan, Tile
from retrograd.ops.rooms import room
from retrograd.testing import contract
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options
from retrograd.testing.interpreter import as_float16, interpreted

ATTENTION = room("attention")
TAKES = names(
    "q k v bias alibi_slopes sinks dropout_seed cu_seqlens_q cu_seqlens_k causal window scale softcap dropout_p"
    " return_lse"
)


# So that small calls have whole tiles in the middle, too.
SMALL = Plan(Tile(32, 32, 4), Tile(16, 32, 4), Tile(16, 32, 4))
LONG = ("causal", "causal_more_keys", "window", "window_causal", "packed_tiles", "dropout", "bias_of_batch")


def with_kernels(plan: Plan | None = None) -> Room:
    op = ATTENTION.op
    assert op is not None
    kernels = Implementation(f"{op.package}.triton", TAKES)
    replan = None if plan is None else lambda _: plan
    return replace(ATTENTION, op=replace(op, implementations=(kernels,), replan=replan)).variant()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(as_float16(case), id=case.name, marks=() if "strided" in case.tags else pytest.mark.slow)
        for case in ATTENTION.tagged("interpreter")
    ],
)
def test_results_and_gradients_keep_their_error_budget(case: Case, seed: int) -> None:
    with interpreted():
        contract.check_errors(with_kernels(), case, "cpu", seed)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])  # by strides, and through tensor descriptors
@pytest.mark.parametrize("name", LONG)
def test_whole_tiles_and_those_at_a_border_keep_the_error_budget(name: str, arch: str, seed: int) -> None:
    with interpreted(arch):
        contract.check_errors(with_kernels(SMALL), as_float16(ATTENTION.case(name)), "cpu", seed)


@pytest.mark.parametrize("name", ["causal", "window", "packed_tiles"])
def test_strides_and_descriptors_give_the_same_bits(name: str, seed: int) -> None:
    case = as_float16(ATTENTION.case(name))
    inputs, gradients = contract.drawn(ATTENTION, case, "cpu", seed)
    found = []
    for arch in ("sm_80", "sm_90"):
        with interpreted(arch):
            found.append(call(with_kernels(SMALL).torch, inputs, options(case), gradients))
    assert_same_bits(found[0], found[1], name)


@pytest.mark.parametrize("name", ["packed", "packed_gaps"])
def test_a_packed_sequence_has_the_same_bits_alone(name: str, seed: int) -> None:
    with interpreted():
        contract.check_packed(with_kernels(), as_float16(ATTENTION.case(name)), "cpu", seed)


def test_a_row_has_the_same_bits_alone(seed: int) -> None:
    with interpreted():
        contract.check_batch_invariance(with_kernels(), as_float16(ATTENTION.case("groups")), "cpu", seed)
