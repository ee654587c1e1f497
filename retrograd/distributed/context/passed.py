"""What a recurrence passes on between processes, and how it is known from few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from retrograd.core.op import Op
from retrograd.core.torch.context import Results
from retrograd.core.torch.passes import gradient_alone
from retrograd.distributed.exchange import all_gather

from .borders import End, Link
from .collectives import Group, Later, real


class Passed(NamedTuple):
    """What a call needs beside its arrays.

    A state is known from few steps if both extremes, as large as any state and of either sign, have become the same
    number behind them: rounding keeps the order of numbers, so that all states between them have become that one, too.

    Attributes:
        op: the recurrence.
        run: the op in one process.
        names: those of the arrays.
        settings: the op's options.
        axes: the axis of time of the arrays that have one.
        extremes: (2 rows, ...): states to begin with, rows of those that cross a border.
        link: from whom and to whom states are passed on.
        group: the processes.
        summed: whether states that reach far come of summaries, with other bits than in one process.
        forget: forgets the reach that calls like this one take unmeasured.
    """

    op: Op
    run: Callable[..., Results]
    names: tuple[str, ...]
    settings: dict[str, Any]
    axes: dict[str, int]
    extremes: Tensor
    link: Link
    group: Group
    summed: bool
    forget: Callable[[], Any]

    @property
    def rows(self) -> int:
        """Of the states that cross a border."""
        return len(self.extremes) // 2

    def results(self, arrays: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Those for the steps, and the states after them."""
        y, final = self.run(arrays, self.settings)
        assert y is not None
        assert final is not None
        return y, final

    def gradient_of_start(self, arrays: dict[str, Any], dy: Tensor, dfinal: Tensor) -> Tensor:
        """The gradient of the states before some steps; as the op is linear in them, they have no part in it."""
        settings = tuple(self.settings.values())
        return gradient_alone(self.op, "initial_state", tuple(arrays.values()), settings, (dy, dfinal))

    def beside(self, arrays: dict[str, Any], end: End, steps: int, start: Tensor) -> dict[str, Any]:
        """The arrays of some steps beside a border, of the sequences that cross it, once for each start."""
        near = {}
        for name, array in arrays.items():
            x = None if array is None else array.detach()
            if x is not None and name in self.axes:
                x = end.part(x, self.axes[name], steps)
                shared = len(x) < self.rows  # one row for all
                x = x if len(start) == self.rows or shared else twice(x)
            near[name] = x
        return {**near, "cu_seqlens": None, "initial_state": start}

    def starts(self, end: End, steps: int, states: Tensor | None, row: slice) -> Tensor:
        """The states before the steps beside a border: those that are there, or the extremes."""
        return twice(self.first(states, row)) if end.whole_is(steps) else self.extremes

    def first(self, states: Tensor | None, row: slice) -> Tensor:
        """The states that sequences begin with, of those that cross a border."""
        return self.zeros() if states is None else states.detach()[row]

    def zeros(self) -> Tensor:
        """States that cross a border, of zeros."""
        return torch.zeros_like(self.extremes[: self.rows])

    def told(self, found: Tensor | None, rank: int | None) -> tuple[Tensor | None, Later]:
        """What both extremes have become on another rank, and whether it is known there, for all ranks.

        All send theirs to all, which takes less of the host than messages in pairs. A process without such a state
        sends another one, which nobody reads.
        """
        both = self.extremes if found is None else found
        one, other = both[: self.rows], both[self.rows :]
        own = real(one.contiguous())
        known = own.new_ones(1) if found is None else is_known(one, other).to(own.dtype)[None]
        message = torch.cat([own, known])
        every = own.new_empty(dist.get_world_size(self.group), len(message))
        all_gather(every.view(-1), message, self.group)
        there = None
        if rank is not None:
            there = torch.empty_like(one)
            real(there).copy_(every[rank, :-1])
        return there, Later(every[:, -1])


def is_known(one: Tensor, other: Tensor) -> Tensor:
    """Whether both extremes have become the same number everywhere."""
    return (one == other).all()


def twice(x: Tensor) -> Tensor:
    """Its rows, and once more."""
    return x.expand(2, *x.shape[1:]) if len(x) == 1 else x.repeat(2, *[1] * (x.ndim - 1))
