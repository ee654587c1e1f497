"""Texts for cases, sizes and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrograd.core.dtypes import TRITON

from ..results import Row
from ..selection import size_letter


@dataclass(frozen=True)
class Panel:
    """The fields that the rows of a panel share: the kind of case, the dtype, and the letters except the size."""

    kind: str
    dtype: str
    letters: tuple[tuple[str, Any], ...]

    @property
    def title(self) -> str:
        """The panel's heading."""
        return " ".join([*([self.kind] if self.kind else []), *(f"{name}{value}" for name, value in self.letters)])


def panel_of(row: Row) -> Panel:
    """The panel that a row belongs to."""
    size = size_letter(list(row.shape))
    return Panel(kind_of(row), row.dtype, tuple(item for item in row.shape.items() if item[0] != size))


def kind_of(row: Row) -> str:
    """The name of a row's case without its letters, such as `causal`."""
    kind = row.case
    for name, value in row.shape.items():
        kind = kind.replace(f"{name}{value}", "")
    return kind.strip("_").replace("_", " ")


def case_label(row: Row, usual_dtype: str) -> str:
    """The kind of a case, its letters, and its dtype if that is not the usual one."""
    words = [
        *([kind] if (kind := kind_of(row)) else []),
        *(f"{name}{size(value)}" for name, value in row.shape.items()),
    ]
    short = TRITON[row.dtype]
    return " ".join([*words, *([short] if row.dtype != usual_dtype and short not in words else [])])


def milliseconds(value: float) -> str:
    """A time with two or three significant digits."""
    return f"{value:#.{3 if value >= 0.1 else 2}g}".rstrip(".")


def size(value: int) -> str:
    """A size in a label: millions with a suffix."""
    return short(value) if value >= 2**20 else str(value)


def short(value: int) -> str:
    """A size on an axis, with a binary suffix: 4096 as 4K."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if value >= unit and value % unit == 0:
            return f"{value // unit}{letter}"
    return str(value)
