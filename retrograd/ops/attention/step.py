"""The declarations of `attention_step_`: a query for each sequence, whose key and value join those in a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, option, optional, required, same_as
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.spec import CallSpec, Param, Size

from .op import Common, Spec, check_scores


@dataclass(frozen=True)
class Append(CallSpec):
    """Writes a step's keys and values into the caches, which it overwrites; keys and queries are rotated.

    The results are queries, steps, and the boundaries of the packed sequences that the caches' rows are to `attention`:
    for each row its used slots, which the query belongs to, and the others, which no query does.
    """

    q: Param = required("B H D", *FLOATS, doc="(B, H, D), float32, bfloat16, float16 or float64.")
    k: Param = required("B G D", "q", doc="(B, G, D) in the dtype of q; G divides H.")
    v: Param = required("B G V", "q", doc="(B, G, V) in the dtype of q.")
    cache_k: Param = required("B C G D", "q", doc="(B, capacity, G, D), dense, in the dtype of q: overwritten.")
    cache_v: Param = required("B C G V", "q", doc="(B, capacity, G, V), likewise.")
    steps: Param = required("B", "int32", doc="(B,) int32, how many steps each row of the caches has.")
    cos: Param | None = optional("C R", "compute_dtype", doc="(capacity, R), float32: of the angles of R pairs.")
    sin: Param | None = optional("C R", "compute_dtype", doc="as cos.")
    interleaved: bool = option("bool", False, doc="whether pairs are channels 2 i and 2 i + 1, not i and i + R.")

    op: ClassVar = "attention_step_"
    letters: ClassVar = {
        **{name: letter for name, letter in Common.letters.items() if name in "BHGDV"},
        "C": Letter("capacity", 1),
        "R": Letter("pairs"),
    }
    results: ClassVar[tuple[Result, ...]] = (
        Result("rotated", "B H D", "q"),
        Result("after", "B", "int32"),
        Result("bounds_q", "B+1 2", "int32"),
        Result("bounds_k", "B+1 2", "int32"),
    )

    batch = Size("B")
    heads = Size("H")
    groups = Size("G")
    capacity = Size("C")
    head_size = Size("D")
    value_size = Size("V")

    @property
    def pairs(self) -> int:
        """Pairs of channels that are rotated."""
        return 0 if self.cos is None else self.cos.shape[1]

    def check(self) -> None:
        """Raise for one of cos and sin without the other, and for more pairs than there are channels."""
        if (self.cos is None) != (self.sin is None):
            missing, given = ("cos", "sin") if self.cos is None else ("sin", "cos")
            raise bad_value(self.op, missing, None, f"an array, since {given} is given")
        if self.cos is not None and 2 * self.pairs > self.head_size:
            expected = f"(capacity={self.capacity}, at most {self.head_size // 2} pairs of channels)"
            raise bad_shape(self.op, "cos", self.cos.shape, expected)


@dataclass(frozen=True)
class Step(Append):
    """`Append`, and `attention` of the queries."""

    window: tuple[int, int] | None = same_as(Spec, "window")
    scale: float | None = same_as(Spec, "scale")
    softcap: float | None = same_as(Spec, "softcap")

    results: ClassVar[tuple[Result, ...]] = (Result("out", "B H V", "q"), Result("after", "B", "int32"))

    def check_options(self) -> None:
        """Raise for option values that are invalid for every q, too."""
        CallSpec.check_options(self)
        check_scores(self.op, self.window, self.scale, self.softcap)


@dataclass(frozen=True)
class Query(CallSpec):
    """`attention` of one query of each sequence: the last step of the used slots of its row of the caches."""

    q: Param = required("B H D", *FLOATS, doc="(B, H, D), float32, bfloat16, float16 or float64: rotated.")
    k: Param = required("B C G D", "q", doc="(B, capacity, G, D) in the dtype of q; G divides H.")
    v: Param = required("B C G V", "q", doc="(B, capacity, G, V) in the dtype of q.")
    after: Param = required("B", "int32", doc="(B,) int32, the steps of each row; a full row has no slot for the last.")
    window: tuple[int, int] | None = same_as(Spec, "window")
    scale: float | None = same_as(Spec, "scale")
    softcap: float | None = same_as(Spec, "softcap")

    op: ClassVar = "attention_step_"
    letters: ClassVar = {name: letter for name, letter in Append.letters.items() if name != "R"}
    results: ClassVar[tuple[Result, ...]] = (Result("out", "B H V", "q"),)

    batch = Size("B")
    heads = Size("H")
    groups = Size("G")
    capacity = Size("C")
    head_size = Size("D")
    value_size = Size("V")

    @property
    def share(self) -> int:
        """Heads of queries that share a head of keys."""
        return self.heads // self.groups

    @property
    def attention(self) -> Spec:
        """The call of `attention` that it is: the caches' rows are packed sequences with gaps, see `Append`."""
        rows = self.batch * self.capacity
        bounds = Param((2 * self.batch + 2,), "int32")
        return Spec(
            q=Param((1, self.batch, self.heads, self.head_size), self.q.dtype),
            k=Param((1, rows, self.groups, self.head_size), self.q.dtype),
            v=Param((1, rows, self.groups, self.value_size), self.q.dtype),
            cu_seqlens_q=bounds,
            cu_seqlens_k=bounds,
            causal=True,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
        )
