"""How far back a state reaches: from which steps beside a border alone the state there can be computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from retrograd.core.forgetting import STEP
from retrograd.core.op import Op
from retrograd.core.torch.xp import torch_namespace
from retrograd.distributed.exchange import all_gather

from .borders import End, Link

if TYPE_CHECKING:
    from .parallel import ContextParallel


class Logs(NamedTuple):
    """Logs of decays, for a state and for its gradient."""

    state: float
    gradient: float


LARGEST = 2.0**24  # of the states, and of their gradients, that are looked for
# When even such a one is forgotten: what is left of it is less than float32's rounding of a state of 2**-48, and of a
# gradient of 2**-80, as most gradients are smaller.
FORGOTTEN = Logs(state=-96 * log(2), gradient=-128 * log(2))
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


class Past(NamedTuple):
    """What all calls of one kind were like so far.

    Attributes:
        reach: the longest that was enough; it does not shrink again.
        near, far: for how many calls one was enough, and for how many none was.
    """

    reach: Reach
    near: int
    far: int


class Reaches:
    """The reaches to try for a call, one after another, until one is enough.

    To measure a reach, the host waits for the GPU. One that was enough before is tried unmeasured, unless most calls so
    far had none. Whether it is enough is always checked, so what calls before were like changes no bits.

    Args:
        measure: measures it; None in all processes, if a state reaches too far in one of them.
        past: of calls by what they have in common, the same in all processes.
        call: what calls like this one have in common.
    """

    def __init__(self, measure: Callable[[], Reach | None], past: dict[Hashable, Past], call: Hashable) -> None:
        self._measure, self._calls, self._call = measure, past, call
        self._past = past.get(call, Past(Reach(0, 0), 0, 0))

    def __iter__(self) -> Iterator[Reach]:
        if self._past.near > self._past.far:
            yield self._past.reach
        found = self._measure()
        if found is not None:
            yield found

    def keep(self, reach: Reach | None) -> None:
        """Note the reach that was enough for this call, or that none was."""
        longest, near, far = self._past
        if reach is None:
            self._calls[self._call] = Past(longest, near, far + 1)
        else:
            self._calls[self._call] = Past(Reach(*map(max, reach, longest)), near + 1, far)


@torch.no_grad()
def measured(
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
            else _steps(op, arrays, axes, settings, end, len(layout.own) // share, log)
            for end, log in zip((link.exit, link.entry), FORGOTTEN, strict=True)
        ]
        all_gather(every, torch.stack(own), context.group)
        found = every.tolist()
        if UNKNOWN not in found:
            return Reach(*found[2 * layout.rank :][:2])
    return None


def _steps(
    op: Op,
    arrays: dict[str, Any],
    axes: dict[str, int],
    settings: dict[str, Any],
    end: End,
    most: int,
    forgotten: float,
) -> Tensor:
    """The fewest steps beside a border that decay a state by `forgotten`, in blocks as in the whole sequence."""
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
    left = sums.amax((0, 2)) if logs.shape[0] and logs.shape[2] else sums.new_full((blocks,), forgotten)
    known = left <= forgotten  # not of NaN
    first = known.int().argmax()
    return torch.where(known.any(), (first + 1) * STEP + rest, UNKNOWN)
