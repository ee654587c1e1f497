"""The kernels of attention, which no call reaches yet, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retrograd.core.cases import Case
from retrograd.core.op import Implementation, names
from retrograd.core.room import Room
from retrograd.ops.rooms import room
from retrograd.testing import contract
from retrograd.testing.interpreter import as_float16, interpreted

ATTENTION = room("attention")
TAKES = names(
    "q k v bias alibi_slopes sinks dropout_seed cu_seqlens_q cu_seqlens_k causal window scale softcap dropout_p"
    " return_lse"
)


def with_kernels() -> Room:
    op = ATTENTION.op
    assert op is not None
    kernels = Implementation(f"{op.package}.triton", TAKES)
    return replace(ATTENTION, op=replace(op, implementations=(kernels,))).variant()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(as_float16(case), id=case.name, marks=() if "strided" in case.tags else pytest.mark.slow)
        for case in ATTENTION.tagged("interpreter")
    ],
)
def test_results_and_gradients_keep_their_error_budget(case: Case, seed: int) -> None:
    with interpreted():
        contract.check_errors(with_kernels(), case, "cpu", seed, most_draws=1)


@pytest.mark.parametrize("name", ["packed", "packed_gaps"])
def test_a_packed_sequence_has_the_same_bits_alone(name: str, seed: int) -> None:
    with interpreted():
        contract.check_packed(with_kernels(), as_float16(ATTENTION.case(name)), "cpu", seed)


def test_a_row_has_the_same_bits_alone(seed: int) -> None:
    with interpreted():
        contract.check_batch_invariance(with_kernels(), as_float16(ATTENTION.case("groups")), "cpu", seed)
