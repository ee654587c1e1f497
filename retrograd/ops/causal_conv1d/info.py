"""The `OpInfo` of causal_conv1d: its record for the contract, the benchmarks and the command line."""

from __future__ import annotations

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import OP

INFO = OpInfo.of(OP, cases=CASES, reference=reference.causal_conv1d, continues=1)
