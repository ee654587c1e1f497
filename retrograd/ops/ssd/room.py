"""ssd as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import OP
from .spec import BORDER
from .torch_op import ssd

ROOM = Room.of(
    OP,
    __package__,
    batch_axis={"x": 0, "dt": 0, "B": 0, "C": 0, "z": 0, "initial_state": 0},
    cases=CASES,
    torch=ssd,
    reference=reference.ssd,
    plain=reference.plain,
    time_axis={"x": 1, "dt": 1, "B": 1, "C": 1, "z": 1},
    continues=BORDER,
    sequence_axis={"initial_state": 0},
    tensor_core_sums=True,
)
