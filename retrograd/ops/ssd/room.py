"""ssd as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .gluon import spans
from .op import OP
from .spec import BORDER, Spec
from .torch_op import ssd


@contextmanager
def cut(share: float, places: int = 1, columns: int = 32) -> Iterator[None]:
    """On Hopper this share of the walks is cut into spans of `places`.

    `ahead` takes so many states (`columns`) at once. `pairs` takes one block of heads and `middle` one head, or, where
    walks are cut, as many of a group as there are.
    """

    def planned(spec: Spec, walks: int) -> spans.Spans:
        return spans.spans(spec, walks, round(share * walks), places)

    def of_ahead(_: int, N: int) -> int:
        return min(N, columns)

    def together(count: int, programs: int, slices: int) -> int:
        return count if share else 1

    def sharing(count: int, programs: int, most: int) -> int:
        return min(count, most) if share else 1

    with (
        mock.patch.object(spans, "planned", planned),
        mock.patch.object(spans, "columns", of_ahead),
        mock.patch.object(spans, "together", together),
        mock.patch.object(spans, "sharing", sharing),
    ):
        yield


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
    structures={
        "whole sequences": partial(cut, 0.0),
        "spans of a place": partial(cut, 1.0),
        "half of them in spans of three places": partial(cut, 0.5, 3, 128),
    },
)
