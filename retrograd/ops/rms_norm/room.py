"""rms_norm as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP
from .torch_op import rms_norm

ROOM = Room.of(
    OP,
    __package__,
    batch_axis={"x": 0, "residual": 0, "gate": 0},
    cases=CASES,
    torch=rms_norm,
    reference=reference.rms_norm,
    # Inputs of equal columns are normalised to a constant, which says nothing about errors.
    gradients_only=frozenset({"broadcast_columns", "broadcast"}),
)
