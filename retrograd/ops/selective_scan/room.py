"""selective_scan as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from retrograd.core.room import Room, spec_of

from . import reference
from .cases import CASES
from .gluon import spans
from .op import OP
from .torch_op import selective_scan, selective_state_update


@contextmanager
def spans_of(pieces: int) -> Iterator[None]:
    """Programs walk so many pieces of a sequence."""
    planned = partial(spans.spans, pieces=pieces)
    with mock.patch.multiple(spans, forward=planned, backward=planned):
        yield


ROOM = Room.of(
    OP,
    __package__,
    batch_axis={"x": 0, "dt": 0, "B": 0, "C": 0, "z": 0, "initial_state": 0},
    cases=CASES,
    torch=selective_scan,
    reference=reference.selective_scan,
    exps=lambda case, which: spec_of(OP, case).exps(which),
    plain=reference.plain,
    time_axis={"x": 1, "dt": 1, "B": 1, "C": 1, "z": 1},
    sequence_axis={"initial_state": 0},
    continues=1,
    update=selective_state_update,
    tensor_core_sums=True,
    structures={
        "whole sequences": partial(spans_of, 2**20),
        "spans of a piece": partial(spans_of, 1),
        "spans of three pieces": partial(spans_of, 3),
    },
)
