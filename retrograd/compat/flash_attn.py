"""flash-attn 2.8's functions on `retrograd.attention`: `from retrograd.compat.flash_attn import flash_attn_func`.

Names, order and defaults of the arguments are those of flash-attn 2. The names that versions 3 and 4 have besides are
keywords here: `learnable_sink` and `return_lse` work, and what only sets their speed has no effect. What cannot be
honoured is refused by name.

- Every gradient is bitwise reproducible, so `deterministic` has no effect.
- The softmax_lse that `return_attn_probs` or `return_lse` returns has a gradient; flash-attn drops it. A query that
  sees no key has -inf there and zeros as its result.
- float32 is taken, head sizes up to 512, and values of another size than queries and keys.
- Dropout draws its seed from PyTorch's generator, and drops other probabilities than flash-attn for the same one.
- transformers asks for the distribution `flash-attn`, so this module is not put in its place: use
  `retrograd.compat.transformers.register` there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import retrograd
from retrograd.compat.checks import expect_dims, flag, refuse
from retrograd.compat.dtypes import full
from retrograd.core.errors import bad_type, bad_value
from retrograd.core.op import names
from retrograd.core.torch.arguments import check_tensors

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]

SEEDS = 2**31 - 1
Window = tuple[int | None, int | None]
Returned = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, None]
# Keywords of versions 3 and 4: of their speed; and what they compute besides.
OF_SPEED = names(
    "num_splits pack_gqa sm_margin scheduler_metadata disable_scheduler_metadata seqlen_k_per_split min_seqlen_k"
)
REFUSED = names(
    "qv q_descale k_descale v_descale attention_chunk gather_kv_indices score_mod score_mod_bwd mask_mod aux_tensors "
    "aux_scalars block_sparse_tensors block_sparse_tensors_bwd seqused_q seqused_k page_table block_table num_heads_q"
)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> Returned:
    """Softmax attention; the last query is at the last key.

    Args:
        q: (batch, seqlen_q, nheads, headdim).
        k: (batch, seqlen_k, nheads_k, headdim); nheads_k divides nheads.
        v: (batch, seqlen_k, nheads_k, headdim_v).
        dropout_p: share of the probabilities that are dropped.
        softmax_scale: factor of the products; 1 / sqrt(headdim) by default.
        causal: whether a query sees no key after its own position.
        window_size: (left, right), how many keys a query sees before and after its own position; -1 or None for all.
        softcap: bound of the scaled products; 0 for none.
        alibi_slopes: (nheads,) or (batch, nheads), float32.
        deterministic: no effect.
        return_attn_probs: return (out, softmax_lse, None), where flash-attn 2 has its test's probabilities in place of
            None; not with dropout.
        learnable_sink: (nheads,): the logarithm of what each head adds to the sum of exponentials.
        return_lse: return (out, softmax_lse).
        others: of flash-attn 3 and 4; see this module's docstring.

    Returns:
        out (batch, seqlen_q, nheads, headdim_v) in the dtype of q, and softmax_lse (batch, nheads, seqlen_q), float32.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument, or that of `retrograd.attention` that it is.

    Example:
        >>> import torch
        >>> from retrograd.compat.flash_attn import flash_attn_func
        >>> q, k, v = (torch.randn(2, 10, heads, 16) for heads in (4, 2, 2))
        >>> flash_attn_func(q, k, v, causal=True, window_size=(3, 0)).shape
        torch.Size([2, 10, 4, 16])
    """
    me = "flash_attn_func"
    check_tensors(me, {"q": q, "k": k, "v": v}, required=3)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        expect_dims(me, name, tensor, "(batch, seqlen, nheads, headdim)")
    options = _options(
        me, q, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, others
    )
    return _returned(
        me,
        return_attn_probs,
        return_lse,
        dropout_p,
        retrograd.attention(q, k, v, sinks=full(q, learnable_sink), return_lse=True, **options),
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Returned:
    """`flash_attn_func` of qkv (batch, seqlen, 3, nheads, headdim), whose gradient is one array, too."""
    me = "flash_attn_qkvpacked_func"
    check_tensors(me, {"qkv": qkv}, required=1)
    expect_dims(me, "qkv", qkv, "(batch, seqlen, 3, nheads, headdim)")
    options = _options(me, qkv, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, {})
    found = retrograd.attention_qkvpacked(qkv, return_lse=True, **options)
    return _returned(me, return_attn_probs, False, dropout_p, found)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Returned:
    """`flash_attn_func` of q and kv (batch, seqlen_k, 2, nheads_k, headdim)."""
    me = "flash_attn_kvpacked_func"
    check_tensors(me, {"q": q, "kv": kv}, required=2)
    expect_dims(me, "kv", kv, "(batch, seqlen, 2, nheads_k, headdim)")
    k, v = _two(me, kv, 2)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_func(q, k, v, *options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> Returned:
    """`flash_attn_func` of packed sequences.

    Args:
        q: (total_q, nheads, headdim): the sequences one after another.
        k: (total_k, nheads_k, headdim).
        v: (total_k, nheads_k, headdim_v).
        cu_seqlens_q, cu_seqlens_k: (sequences + 1,) int32: the start of each sequence, and the end of the last.
        max_seqlen_q, max_seqlen_k: have no effect.
        block_table: refused.
        others: as in `flash_attn_func`; `alibi_slopes` is (nheads,) or (sequences, nheads).

    Returns:
        out (total_q, nheads, headdim_v), and softmax_lse (nheads, total_q).
    """
    me = "flash_attn_varlen_func"
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    check_tensors(me, tensors, required=5)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        expect_dims(me, name, tensor, "(total, nheads, headdim)")
    refuse(me, "", block_table=block_table)
    options = _options(
        me, q, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, others
    )
    out, lse = retrograd.attention(
        q[None],
        k[None],
        v[None],
        cu_seqlens_q=cu_seqlens_q.int(),
        cu_seqlens_k=cu_seqlens_k.int(),
        sinks=full(q, learnable_sink),
        return_lse=True,
        **options,
    )
    return _returned(me, return_attn_probs, return_lse, dropout_p, (out[0], lse[0]))


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Returned:
    """`flash_attn_varlen_func` of qkv (total, 3, nheads, headdim)."""
    me = "flash_attn_varlen_qkvpacked_func"
    check_tensors(me, {"qkv": qkv, "cu_seqlens": cu_seqlens}, required=2)
    expect_dims(me, "qkv", qkv, "(total, 3, nheads, headdim)")
    options = _options(me, qkv, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, {})
    out, lse = retrograd.attention_qkvpacked(qkv[None], cu_seqlens=cu_seqlens.int(), return_lse=True, **options)
    return _returned(me, return_attn_probs, False, dropout_p, (out[0], lse[0]))


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Returned:
    """`flash_attn_varlen_func` of q and kv (total_k, 2, nheads_k, headdim)."""
    me = "flash_attn_varlen_kvpacked_func"
    check_tensors(me, {"q": q, "kv": kv}, required=2)
    expect_dims(me, "kv", kv, "(total, 2, nheads_k, headdim)")
    k, v = _two(me, kv, 1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def _options(
    me: str,
    q: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: Any,
    window_size: Any,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: Any,
    others: dict[str, Any],
) -> dict[str, Any]:
    """The options in `retrograd.attention`'s terms."""
    for name in others:
        if name not in OF_SPEED | REFUSED:
            raise TypeError(f"{me}: got an unexpected keyword argument {name!r}")
    given = {name: value for name, value in others.items() if name in REFUSED}
    refuse(me, "", **{name: None if isinstance(value, int) and value == 0 else value for name, value in given.items()})
    flag(me, "deterministic", deterministic)
    if not isinstance(window_size, tuple | list) or len(window_size) != 2:
        raise bad_type(me, "window_size", window_size, "(left, right)")
    window = tuple(-1 if side is None else side for side in window_size)
    options: dict[str, Any] = {
        "causal": flag(me, "causal", causal),
        "window": None if window == (-1, -1) else window,
        "scale": softmax_scale,
        "softcap": softcap or None,
        "alibi_slopes": alibi_slopes,
    }
    if dropout_p:
        options["dropout_p"] = dropout_p
        options["dropout_seed"] = torch.randint(SEEDS, (), dtype=torch.int32, device=q.device)
    return options


def _returned(me: str, probabilities: Any, lse: Any, dropout_p: float, found: tuple[Tensor, Tensor]) -> Returned:
    """What is asked for of (out, softmax_lse)."""
    if flag(me, "return_attn_probs", probabilities):
        if dropout_p:
            raise bad_value(me, "return_attn_probs", True, f"False, since dropout_p is {dropout_p}")
        return *found, None
    return found if flag(me, "return_lse", lse) else found[0]


def _two(me: str, kv: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Keys and values that lie in one array."""
    if kv.shape[axis] != 2:
        raise bad_value(me, "shape of kv", tuple(kv.shape), f"2 at axis {axis}")
    k, v = kv.unbind(axis)
    return k, v
