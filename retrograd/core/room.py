"""What a room tells the house about itself: the contract, the benchmarks and the command line know no more of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .arch import Arch
from .cases import Case
from .program import Program

Pass = Literal["fwd", "bwd"]


@dataclass(frozen=True)
class Room:
    """One op, complete.

    Attributes:
        name: the op's name.
        arguments: its array arguments, in the order of the public function; the first is positional.
        batch_axis: argument -> the axis along which independent rows lie, for the arguments that have one.
        cases: the named shapes.
        torch: the public PyTorch function.
        jax: loads jax and returns the public JAX function.
        reference: the definition, plain PyTorch.
        programs: a case's forward and backward program on an architecture; needs no GPU.
        bytes_moved: the fewest bytes a case's pass moves through device memory.
        flops: a case's floating-point operations.
    """

    name: str
    arguments: tuple[str, ...]
    batch_axis: dict[str, int]
    cases: Sequence[Case]
    torch: Callable[..., Any]
    jax: Callable[[], Callable[..., Any]]
    reference: Callable[..., Any]
    programs: Callable[[Case, Arch], tuple[Program, Program]]
    bytes_moved: Callable[[Case, Pass], int]
    flops: Callable[[Case, Pass], int]

    def case(self, name: str) -> Case:
        """The case of that name."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{self.name} has no case {name!r}")

    def tagged(self, *tags: str) -> list[Case]:
        """The cases that carry any of the tags."""
        return [case for case in self.cases if case.tags.intersection(tags)]
