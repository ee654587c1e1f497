"""The room of linear_scan: its record for the contract, the benchmarks and the command line."""

from __future__ import annotations

from dataclasses import replace

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP


def one_pass(room: Room) -> Room:
    """The variant in which each tile passes its state to the next."""
    return room.variant(replan=lambda plan: replace(plan, one_pass=True))


def three_kernels(room: Room) -> Room:
    """The variant with three kernels: reduce, carry, scan."""
    return room.variant(replan=lambda plan: replace(plan, one_pass=False))


ROOM = Room.of(
    OP,
    cases=CASES,
    reference=reference.linear_scan,
    structures={"one pass": one_pass, "three kernels": three_kernels},
)
