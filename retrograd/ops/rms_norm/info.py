"""The `OpInfo` of rms_norm: its record for the contract, the benchmarks and the command line."""

from __future__ import annotations

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import OP

INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.rms_norm,
    # Equal columns are normalised to a constant, which shows no errors.
    gradients_only=frozenset({"broadcast_columns", "broadcast"}),
)
