"""rms_norm as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP

ROOM = Room.of(
    OP,
    cases=CASES,
    reference=reference.rms_norm,
    # Inputs of equal columns are normalised to a constant, which says nothing about errors.
    gradients_only=frozenset({"broadcast_columns", "broadcast"}),
)
