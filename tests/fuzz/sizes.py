"""Strategies shared by all ops: sizes, dtypes, boundaries of packed sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from retrograd.opinfo.cases import Case, Tensor

KERNEL_FLOATS = st.sampled_from(("float32", "bfloat16", "float16"))
FLAG = st.booleans()
DOUBLE = {"float32": "float64", "complex64": "complex128"}


def size(most: int) -> st.SearchStrategy[int]:
    """Sizes of a dimension, including 0 and 1."""
    return st.integers(0, most)


def flags(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a boolean option."""
    return st.fixed_dictionaries(dict.fromkeys(names, FLAG))


def bounds(steps: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Boundaries of packed sequences, some empty; steps before the first and after the last may be outside."""
    return st.lists(st.integers(0, steps), min_size=2, max_size=5).map(lambda numbers: tuple(sorted(numbers)))


def packed(case: Case, where: tuple[int, ...]) -> Case:
    """The case with other boundaries of its sequences."""
    return replace(case, inputs={**case.inputs, "cu_seqlens": Tensor((len(where),), "int32", values=where)})


def doubled(case: Case) -> Case:
    """A float32 case in float64."""
    inputs = {name: replace(t, dtype=DOUBLE.get(t.dtype, t.dtype)) for name, t in case.inputs.items()}
    options = {name: DOUBLE.get(v, v) if isinstance(v, str) else v for name, v in case.options.items()}
    return replace(case, inputs=inputs, options=options)
