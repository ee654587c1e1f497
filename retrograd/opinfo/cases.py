"""Named cases: one list per op, read by its tests, benchmarks and docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from retrograd.core.declaration import Option

VALUES: dict[str, tuple[Any, ...]] = {  # values to try, by kind of option
    "bool": (False, True),
    "float": (0.25, 0.5),
    "float?": (None, 0.3, 0.5),
    "float[]": ((0.0, 1.0), (0.0, 2.0)),
    "int[]?": (None, (3, 0), (2, 4)),
    "SymInt?": (None, 8, 16),
    "ScalarType?": ("float32", "bfloat16", "float16"),
}

Law = Literal["normal", "decay", "negative"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A random input, drawn at each use from g = mean + std * (standard normal).

    Attributes:
        shape: its shape.
        dtype: its dtype.
        mean: the mean of g.
        std: the standard deviation of g.
        law: `normal` is g, for complex dtypes in both the real and the imaginary part; `decay` is sigmoid(g), for
            complex dtypes as the magnitude, with a random phase; `negative` is -exp(g), for complex dtypes as the real
            part, with a standard normal imaginary part.
        values: fixed numbers, in row-major order, used instead of random ones.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float = 0.0
    std: float = 1.0
    law: Law = "normal"
    values: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A named call.

    Attributes:
        name: unique in its info.
        inputs: argument -> tensor; the first is the op's positional input.
        options: the options of the call.
        tags: `test` cases run everywhere; `gpu` cases are too large for a CPU; `bench` cases are timed;
            `interpreter` cases are small enough for Triton's interpreter. Tests with many variations of a call
            (strides, transformations) use the `strided` cases, or the `interpreter` cases in a info without any.
        shape: letter -> size, as benchmark rows record the case.
        shared: arguments that all rows and steps of this case share, though the info names a batch or time axis for
            them.
    """

    name: str
    inputs: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: frozenset[str] = frozenset({"test"})
    shape: Mapping[str, int] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()


def in_dtypes(case: Case, other: Mapping[str, str]) -> Case:
    """The case with other dtypes, of its inputs and in its options; `other`: dtype -> the one to use instead."""

    def swap(value: Any) -> Any:
        return other.get(value, value) if isinstance(value, str) else value

    inputs = {name: replace(tensor, dtype=swap(tensor.dtype)) for name, tensor in case.inputs.items()}
    return replace(case, inputs=inputs, options={name: swap(value) for name, value in case.options.items()})


def matching(cases: Iterable[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases whose name matches any of the patterns, such as `causal_*`."""
    return [case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in patterns)]


def other_values(option: Option, now: Any) -> list[Any]:
    """Values to try for an option, other than `now`."""
    return [value for value in option.choices or VALUES[option.kind] if value != now]
