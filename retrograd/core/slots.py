"""The slots of a batch, and which of them a process computes."""

from __future__ import annotations

from dataclasses import dataclass

from .tree import is_power_of_2


@dataclass(frozen=True, slots=True)
class Slots:
    """A batch in parts of one shape, divided among the processes in order: each has as many, one after another.

    Args:
        count: S, the parts of the whole batch. It belongs to the run, as its seed does.
        world: W, the number of processes.
        rank: of this process, from 0 to W - 1.

    Raises:
        ValueError: unless W divides S and S / W is a power of two. Only then is the sum of a process's own gradients a
            node of the tree in which all S are added.

    Example:
        >>> from retrograd.distributed import Slots
        >>> Slots(8, world=2, rank=1).own
        range(4, 8)
    """

    count: int
    world: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"Slots: count is {self.count}, expected at least 1")
        fitting = [n for n in range(1, self.count + 1) if self.count % n == 0 and is_power_of_2(self.count // n)]
        if self.world not in fitting:
            among = ", ".join(map(str, fitting))
            raise ValueError(f"Slots: world is {self.world}, expected one of {among} for {self.count} slots")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"Slots: rank is {self.rank}, expected 0 to {self.world - 1}")

    @property
    def own(self) -> range:
        """The slots of this process."""
        each = self.count // self.world
        return range(self.rank * each, (self.rank + 1) * each)
