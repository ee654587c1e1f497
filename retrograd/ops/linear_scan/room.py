"""linear_scan as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from retrograd.core.room import Room

from . import plan, reference
from .cases import CASES
from .op import OP
from .torch_op import linear_scan


@contextmanager
def one_pass() -> Iterator[None]:
    """Tiles hand on their state."""
    with mock.patch.object(plan, "one_pass", return_value=True):
        yield


@contextmanager
def three_kernels() -> Iterator[None]:
    """Reduce, carry, scan."""
    with mock.patch.object(plan, "one_pass", return_value=False):
        yield


ROOM = Room.of(
    OP,
    __package__,
    batch_axis={"a": 0, "b": 0, "initial_state": 0},
    cases=CASES,
    torch=linear_scan,
    reference=reference.linear_scan,
    time_axis={"a": 1, "b": 1},
    sequence_axis={"initial_state": 0},
    structures={"one pass": one_pass, "three kernels": three_kernels},
)
