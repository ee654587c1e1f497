"""The record of attention for the contract, the benchmarks and the command line."""

from __future__ import annotations

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import OP


def alone(case: Case) -> bool:
    """Whether the contract compares a row or a sequence with itself alone.

    Dropout depends on its place; a bias beside packed sequences would have to be cut along two axes.
    """
    packed_bias = {"bias", "cu_seqlens_q"} <= set(case.inputs)
    return not case.options.get("dropout_p") and not packed_bias


def causal(case: Case) -> bool:
    """Whether queries see no key after their own position, which is the same with fewer steps."""
    same = case.inputs["q"].shape[1] == case.inputs["k"].shape[1]
    return same and bool(case.options.get("causal")) and "bias" not in case.inputs


INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.attention,
    plain=reference.plain,
    alone=alone,
    causal=causal,
    draws=4,  # the largest errors come from the rounding of a few queries' lse
)
