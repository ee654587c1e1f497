"""linear_scan as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from dataclasses import replace

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP


def one_pass(room: Room) -> Room:
    """Tiles hand on their state."""
    return room.variant(replan=lambda plan: replace(plan, one_pass=True))


def three_kernels(room: Room) -> Room:
    """Reduce, carry, scan."""
    return room.variant(replan=lambda plan: replace(plan, one_pass=False))


ROOM = Room.of(
    OP,
    cases=CASES,
    reference=reference.linear_scan,
    structures={"one pass": one_pass, "three kernels": three_kernels},
)
