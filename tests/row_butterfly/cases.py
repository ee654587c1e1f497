"""Named shapes of row_butterfly: ordinary, odd, empty."""

from __future__ import annotations

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})


def case(name: str, shape: tuple[int, int], dtype: str = "float32", tags: frozenset[str] = SMALL) -> Case:
    """A case."""
    return Case(name, {"x": Tensor(shape, dtype), "half": Tensor(shape[:1], "float32")}, tags=tags)


CASES = [
    case("plain", (64, 48), tags=SMALL | {"strided"}),
    case("narrow", (65, 33), "bfloat16"),
    case("empty", (0, 8)),
    case("no_columns", (3, 0)),
]
