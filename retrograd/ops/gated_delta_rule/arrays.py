"""Arrays with their strides, and numbers that belong together, as the kernels take them. Symbols: README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Call(NamedTuple):
    """Steps of a row, sequences, heads, key heads, and the scale of the results: on these no binary depends."""

    T: Any
    sequences: Any
    H: Any
    G: Any
    scale: Any


class Rows(NamedTuple):
    """Rows of q or k in all, steps of a row of the batch, key heads, sequences: on these no binary depends."""

    rows: Any
    T: Any
    G: Any
    sequences: Any
