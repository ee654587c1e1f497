"""Which steps of a sequence, or of packed sequences, each process has: pure Python, without processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from retrograd.core.errors import bad_value
from retrograd.core.forgetting import STEP

ME = "Layout"


@dataclass(frozen=True, slots=True)
class Piece:
    """The steps of one sequence in one process, which may be none.

    Attributes:
        sequence: its number among all sequences.
        begin, end: the process's steps.
        first: whether the sequence begins in this process.
        last: whether it ends in this process.
    """

    sequence: int
    begin: int
    end: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Layout:
    """Contiguous steps for each rank, in the order of ranks.

    Attributes:
        starts: (W + 1,): rank r has the steps starts[r] up to starts[r + 1]; they begin with 0 and do not decrease.
        rank: that of this process.
        bounds: (S + 1,): the boundaries of packed sequences among all steps, as `cu_seqlens`; None where each row of a
            batch is one sequence.

    Raises:
        ValueError: naming the attribute.

    Example:
        >>> from retrograd.distributed import Layout
        >>> layout = Layout.even(1000, world=2, rank=1, bounds=(0, 550, 1000))
        >>> layout.own, layout.cu_seqlens
        (range(512, 1000), (0, 38, 488))
        >>> layout.pieces[0]
        Piece(sequence=0, begin=0, end=38, first=False, last=True)
    """

    starts: tuple[int, ...]
    rank: int
    bounds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        starts, bounds = self.starts, self.bounds
        if len(starts) < 2 or starts[0] != 0 or any(a > b for a, b in pairwise(starts)):
            raise bad_value(ME, "starts", starts, "the first step of each rank and the number of all, not decreasing")
        if not 0 <= self.rank < self.world:
            raise bad_value(ME, "rank", self.rank, f"0 to {self.world - 1}, since starts is of {self.world} ranks")
        if bounds is not None and (
            len(bounds) < 2 or bounds[0] < 0 or bounds[-1] > self.time or any(a > b for a, b in pairwise(bounds))
        ):
            raise bad_value(ME, "bounds", bounds, f"boundaries of sequences, not decreasing, of 0 to {self.time}")

    @classmethod
    def even(cls, time: int, world: int, rank: int, bounds: Sequence[int] | None = None, step: int = STEP) -> Layout:
        """Equal parts, but for borders that are moved to a multiple of `step` from where a sequence began.

        Args:
            time: the steps of all ranks.
            world: the number of ranks.
            rank: that of this process.
            bounds: the boundaries of packed sequences.
            step: 256 keeps the bits of one process in every op.
        """
        if time < 0 or world < 1 or step < 1:
            raise bad_value(ME, "(time, world, step)", (time, world, step), "at least (0, 1, 1)")
        sequences = (0, time) if bounds is None else tuple(bounds)
        starts = tuple(_border(sequences, time * rank // world, step) for rank in range(world))
        return cls((0, *starts[1:], time), rank, None if bounds is None else sequences)

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.starts) - 1

    @property
    def time(self) -> int:
        """The steps of all ranks."""
        return self.starts[-1]

    @property
    def own(self) -> range:
        """The steps of this rank."""
        return range(self.starts[self.rank], self.starts[self.rank + 1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of steps of each rank."""
        return tuple(b - a for a, b in pairwise(self.starts))

    @property
    def sequences(self) -> tuple[int, ...]:
        """The boundaries of all sequences; rows that are not packed have one, of all steps."""
        return (0, self.time) if self.bounds is None else self.bounds

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Those of this rank."""
        return self.pieces_of(self.rank)

    def pieces_of(self, rank: int) -> tuple[Piece, ...]:
        """The pieces of the sequences that a rank has steps of, or that pass over a rank without steps.

        A sequence without steps belongs to the first rank that has its place.
        """
        start, stop = self.starts[rank], self.starts[rank + 1]
        found = []
        for number, (begin, end) in enumerate(pairwise(self.sequences)):
            if begin == end:
                here = rank == next(r for r in range(self.world) if begin <= self.starts[r + 1])
            else:
                here = begin < start < end if start == stop else begin < stop and end > start
            if here:
                low, high = (min(max(place, start), stop) - start for place in (begin, end))
                found.append(Piece(number, low, high, begin >= start, end <= stop))
        return tuple(found)

    def crosses(self, border: int) -> bool:
        """Whether a sequence has steps on both sides of the first step of rank `border`."""
        return any(begin < self.starts[border] < end for begin, end in pairwise(self.sequences))

    @cached_property
    def divides(self) -> bool:
        """Whether a sequence crosses a border."""
        return any(map(self.crosses, range(1, self.world)))

    @cached_property
    def exact(self) -> bool:
        """Whether each border within a sequence is a multiple of 256 steps from where the sequence begins."""
        crossed = ((start, begin) for start in self.starts for begin, end in pairwise(self.sequences)
                   if begin < start < end)  # fmt: skip
        return all((start - begin) % STEP == 0 for start, begin in crossed)

    @cached_property
    def cu_seqlens(self) -> tuple[int, ...]:
        """The boundaries of this rank's pieces among its own steps; one empty sequence where there is none."""
        pieces = self.pieces
        return (pieces[0].begin, *(piece.end for piece in pieces)) if pieces else (0, 0)

    @property
    def positions(self) -> tuple[int, ...]:
        """The position of each own step in its sequence; 0 outside of every sequence."""
        found = [0] * len(self.own)
        bounds = self.sequences
        for piece in self.pieces:
            before = self.own.start - bounds[piece.sequence]
            found[piece.begin : piece.end] = range(before + piece.begin, before + piece.end)
        return tuple(found)


def _border(sequences: Sequence[int], place: int, step: int) -> int:
    """The place for a border nearest to this one: a multiple of `step` from where its sequence begins, or its end."""
    for begin, end in pairwise(sequences):
        if begin < place < end:
            return min(end, begin + step * round((place - begin) / step))
    return place
