"""The `OpInfo` of row_butterfly."""

from __future__ import annotations

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import OP

INFO = OpInfo.of(OP, cases=CASES, reference=reference.row_butterfly)
