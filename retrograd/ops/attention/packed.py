"""The declaration of `attention_qkvpacked`: `attention` of queries, keys and values that lie in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, boundaries, required, same_as
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Stack
from retrograd.core.spec import Param

from .op import SLOPES, Common, Spec

STACK = Stack("qkv", ("q", "k", "v"), axis=2)


@dataclass(frozen=True)
class Packed(Common):
    """A call of `attention_qkvpacked`."""

    qkv: Param = required("B Q 3 H D", *FLOATS, doc="")
    bias: Param | None = same_as(Spec, "bias", dtypes=("qkv", "compute_dtype"))
    alibi_slopes: Param | None = same_as(Spec, "alibi_slopes")
    sinks: Param | None = same_as(Spec, "sinks")
    dropout_seed: Param | None = same_as(Spec, "dropout_seed")
    cu_seqlens: Param | None = boundaries("qkv", SLOPES, reaches="Q")
    segment_ids: Param | None = same_as(Spec, "segment_ids")
    causal: bool = same_as(Spec, "causal")
    window: tuple[int, int] | None = same_as(Spec, "window")
    scale: float | None = same_as(Spec, "scale")
    softcap: float | None = same_as(Spec, "softcap")
    dropout_p: float = same_as(Spec, "dropout_p")
    return_lse: bool = same_as(Spec, "return_lse")
    backward: str = same_as(Spec, "backward")

    op: ClassVar = "attention_qkvpacked"
    letters: ClassVar = {**Common.letters, "Q": Letter("steps"), "K": Letter("steps")}

    def bind_sizes(self) -> None:
        """There are as many keys as queries, with as many heads of the same size."""
        self.sizes.update(K=self.queries, G=self.heads, V=self.head_size)
