"""causal_conv1d as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP
from .torch_op import causal_conv1d, causal_conv1d_update

ROOM = Room.of(
    OP,
    __package__,
    batch_axis={"x": 0, "initial_state": 0},
    cases=CASES,
    torch=causal_conv1d,
    reference=reference.causal_conv1d,
    time_axis={"x": 1},
    sequence_axis={"initial_state": 0},
    continues=1,
    update=causal_conv1d_update,
)
