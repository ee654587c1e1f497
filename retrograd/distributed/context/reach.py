"""How far back a state reaches: from which steps beside a border alone the state there can be computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from retrograd.core.forgetting import FORGOTTEN, STEP
from retrograd.core.op import Op
from retrograd.core.torch.xp import torch_namespace
from retrograd.distributed.exchange import all_gather

from .layout import Piece

if TYPE_CHECKING:
    from .parallel import ContextParallel
    from .states import Link

SHARES = (16, 4)  # at most one of so many of a process's steps is computed twice; the first that is enough
UNKNOWN = -1


class Reach(NamedTuple):
    """The steps beside a process's borders that determine what crosses them.

    Attributes:
        state: the last steps, in the direction of the scan, of which the state comes that leaves; 0 where none does.
        gradient: the first steps, of which the gradient comes of the state that entered; 0 where none did.
    """

    state: int
    gradient: int


class End(NamedTuple):
    """The steps of a sequence beside a border.

    Attributes:
        begin, end: the process's steps.
        border: whether the border is behind them; before them otherwise.
        whole: whether they are all steps of the sequence on this side of the border.
    """

    begin: int
    end: int
    border: bool
    whole: bool

    def part(self, x: Tensor, dim: int, steps: int) -> Tensor:
        """As many steps of x, beside the border."""
        return x.narrow(dim, self.end - steps if self.border else self.begin, steps)

    def whole_is(self, steps: int) -> bool:
        """Whether these steps are all of the sequence on this side of the border."""
        return self.whole and steps == self.end - self.begin


def end_of(piece: Piece, border: bool) -> End:
    """The steps of a sequence that crosses the border behind a process's piece of it, or before it."""
    return End(piece.begin, piece.end, border, piece.first if border else piece.last)


@torch.no_grad()
def reach_of(
    context: ContextParallel,
    op: Op,
    arrays: dict[str, Any],
    axes: dict[str, int],
    settings: dict[str, Any],
    link: Link,
) -> Reach | None:
    """How far the states at this process's borders reach; None in all processes, if one of them reaches too far."""
    layout, device = context.layout, arrays[next(iter(axes))].device
    every = torch.empty(2 * layout.world, dtype=torch.int64, device=device)
    for share in SHARES:
        own = [
            torch.full((), 0, device=device)
            if end is None
            else _steps(op, arrays, axes, settings, end, len(layout.own) // share)
            for end in (link.exit, link.entry)
        ]
        all_gather(every, torch.stack(own), context.group)
        found = every.tolist()
        if UNKNOWN not in found:
            return Reach(*found[2 * layout.rank :][:2])
    return None


def _steps(
    op: Op, arrays: dict[str, Any], axes: dict[str, int], settings: dict[str, Any], end: End, most: int
) -> Tensor:
    """The fewest steps beside a border before which a state is forgotten, with blocks as in the whole sequence."""
    length = end.end - end.begin
    like = arrays[next(iter(axes))]
    if end.whole and length <= most:
        return torch.full((), length, device=like.device)
    rest = length % STEP if end.border else 0
    blocks = (min(most, length) - rest) // STEP
    if blocks <= 0:
        return torch.full((), UNKNOWN, device=like.device)
    near = {n: t if t is None or n not in axes else end.part(t, axes[n], blocks * STEP + rest)
            for n, t in arrays.items()}  # fmt: skip
    logs = op.formulas.log_decays(torch_namespace(), near, settings)
    if end.border:
        logs = logs.flip(1)
    sums = logs[:, : blocks * STEP].unflatten(1, (blocks, STEP)).sum(2).cumsum(1)
    left = sums.amax((0, 2)) if logs.shape[0] and logs.shape[2] else sums.new_full((blocks,), FORGOTTEN)
    known = left <= FORGOTTEN  # not of NaN
    first = known.int().argmax()
    return torch.where(known.any(), (first + 1) * STEP + rest, UNKNOWN)
