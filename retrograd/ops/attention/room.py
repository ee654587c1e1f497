"""The record of attention for the contract, the benchmarks and the command line."""

from __future__ import annotations

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP

ROOM = Room.of(OP, cases=CASES, reference=reference.attention)
