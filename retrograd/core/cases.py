"""Named cases: one list a room, read by its tests, its benchmarks and its docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Law = Literal["normal", "decay", "negative"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input to be drawn afresh, with g = mean + std * (standard normal).

    Attributes:
        shape: its shape.
        dtype: its dtype.
        mean: of g.
        std: of g.
        law: `normal` is g, real and imaginary part alike; `decay` is sigmoid(g), for complex dtypes the magnitude of a
            number of any phase; `negative` is -exp(g), for complex dtypes the real part beside a standard normal
            imaginary part.
        values: these numbers, in row-major order, instead of a draw.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float = 0.0
    std: float = 1.0
    law: Law = "normal"
    values: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A call by name.

    Attributes:
        name: unique in its room.
        inputs: argument -> tensor; the first is the op's positional input.
        options: the other arguments.
        tags: `test` cases run everywhere; `gpu` cases are too large for a CPU; `bench` cases are timed;
            `interpreter` cases are small enough for Triton's interpreter. What is tried in many ways (strides,
            transformations) is tried on the `strided` cases, or on those for the interpreter where a room has none.
        shape: the letters under which a benchmark row records the case.
        shared: arguments that one value serves for all rows and steps here, though the room names an axis for them.
    """

    name: str
    inputs: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: frozenset[str] = frozenset({"test"})
    shape: Mapping[str, int] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
