"""The declaration of `attention_qkvpacked`: `attention` of queries, keys and values that lie in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, required, same_as
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Stack
from retrograd.core.spec import Param

from .op import ELSEWHERE, Common, Spec


@dataclass(frozen=True)
class Packed(Common):
    """`attention` of queries, keys and values that a projection left in one array, without a copy of them."""

    qkv: Param = required(
        "B Q 3 H D",
        *FLOATS,
        doc="""(B, T, 3, H, D): queries, keys and values. Its gradient is one array, too: in PyTorch on a GPU the
        kernels write it without a copy; in a compiled graph, under transforms and in JAX it is put together from
        three.""",
    )
    bias: Param | None = same_as(Spec, "bias", dtypes=("qkv", "compute_dtype"))
    alibi_slopes: Param | None = same_as(Spec, "alibi_slopes")
    sinks: Param | None = same_as(Spec, "sinks")
    dropout_seed: Param | None = same_as(Spec, "dropout_seed")
    cu_seqlens: Param | None = same_as(
        Spec, "cu_seqlens_q", doc="(S + 1,) int32 or int64: the boundaries of queries and keys."
    )
    segment_ids: Param | None = same_as(Spec, "segment_ids")
    causal: bool = same_as(Spec, "causal")
    window: tuple[int, int] | None = same_as(Spec, "window")
    scale: float | None = same_as(Spec, "scale")
    softcap: float | None = same_as(Spec, "softcap")
    dropout_p: float = same_as(Spec, "dropout_p")
    return_lse: bool = same_as(Spec, "return_lse")
    backward: str = same_as(Spec, "backward")

    op: ClassVar = "attention_qkvpacked"
    elsewhere: ClassVar = {name: ours for name, ours in ELSEWHERE.items() if name != "cu_seqlens"}
    autocast: ClassVar = ("qkv",)
    letters: ClassVar = {**Common.letters, "Q": Letter("steps"), "K": Letter("steps")}
    results: ClassVar = (
        Result("out", "B Q H D", "qkv"),
        Result("lse", "B H Q", "compute_dtype", returned="return_lse"),
    )

    RETURNS: ClassVar = "out (B, T, H, D); with `return_lse`, (out, lse)."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> qkv = torch.randn(2, 100, 3, 8, 64, requires_grad=True)
        >>> retrograd.attention_qkvpacked(qkv, causal=True).sum().backward()
        >>> qkv.grad.shape
        torch.Size([2, 100, 3, 8, 64])
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import attention_qkvpacked
        >>> dqkv = jax.grad(lambda qkv: attention_qkvpacked(qkv, causal=True).sum())(jnp.ones((2, 100, 3, 8, 64)))
        >>> dqkv.shape
        (2, 100, 3, 8, 64)
        """

    def bind_sizes(self) -> None:
        """There are as many keys as queries, with as many heads of the same size."""
        self.sizes.update(K=self.queries, G=self.heads, V=self.head_size)


ATTENTION_QKVPACKED = Stack(Packed, ("q", "k", "v"), axis=2)
