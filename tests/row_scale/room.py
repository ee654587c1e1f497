"""The room of row_scale."""

from __future__ import annotations

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP

ROOM = Room.of(OP, cases=CASES, reference=reference.row_scale)
