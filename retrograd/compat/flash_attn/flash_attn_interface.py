"""`flash_attn.flash_attn_interface`: attention of batches and of packed sequences.

By position, arguments are those of flash-attn 2. Those that only flash-attn 3 or 4 has are given by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from retrograd.compat.checks import expect, expect_dims, refuse
from retrograd.core.errors import bad_shape, check_option

from .calls import Call, Returned, Window, expect_boundaries, expect_heads, expect_used, tensors
from .kvcache import flash_attn_with_kvcache
from .packing import longest, of_parts, used_parts
from .probabilities import signed_probabilities

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

BATCHED, PACKED = "(batch, seqlen, nheads, headdim)", "(total, nheads, headdim)"


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
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    gather_kv_indices: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    score_mod_bwd: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    aux_tensors: list[Tensor] | None = None,
    aux_scalars: tuple[Any, ...] | None = None,
    block_sparse_tensors: Any = None,
    block_sparse_tensors_bwd: Any = None,
    return_lse: bool = False,
) -> Returned:
    """Softmax attention, on `retrograd.attention`: differentiable, and bitwise reproducible.

    Query i sees key j if i' - left <= j <= i' + right, with i' = i + seqlen_k - seqlen_q: the last query is aligned
    with the last key. A query that sees no key has zeros as its result, and lse -inf.

    Args:
        q: (batch, seqlen_q, nheads, headdim), float32, bfloat16, float16 or float64, any strides.
        k: (batch, seqlen_k, nheads_k, headdim) in the dtype of q; nheads_k divides nheads.
        v: (batch, seqlen_k, nheads_k, headdim_v) in the dtype of q.
        dropout_p: share of the probabilities that are dropped. The seed is drawn from PyTorch's generator.
        softmax_scale: factor of the products; 1 / sqrt(headdim) by default.
        causal: whether right is 0.
        window_size: (left, right), how many keys a query sees before and after its own position; -1 or None for all.
        softcap: bound of the scaled products; none unless it is positive.
        alibi_slopes: (nheads,) or (batch, nheads): slope |i' - j| is subtracted from the scores. Have gradients.
        deterministic: no effect; gradients always are.
        return_attn_probs: also return lse and the signed probabilities, for tests.
        learnable_sink: (nheads,): the logarithm of what each head adds to the sum of exponentials. Has a gradient.
        return_lse: also return lse.
        num_splits, pack_gqa, sm_margin: no effect.
        qv, q_descale, k_descale, v_descale, attention_chunk, gather_kv_indices, score_mod, score_mod_bwd, mask_mod,
            aux_tensors, aux_scalars, block_sparse_tensors, block_sparse_tensors_bwd: refused.

    Returns:
        out (batch, seqlen_q, nheads, headdim_v). With `return_lse`, (out, lse): logarithms of the sums of exponentials
        (batch, nheads, seqlen_q), which have gradients. With `return_attn_probs`, (out, lse, probabilities): these are
        empty without dropout, and else (batch, nheads, seqlen_q, seqlen_k), negative where a pair is dropped.

    Raises:
        ValueError, TypeError, NotImplementedError: before any launch, naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.flash_attn import flash_attn_func
        >>> q, k = torch.randn(2, 100, 8, 64, requires_grad=True), torch.randn(2, 100, 2, 64)
        >>> flash_attn_func(q, k, k, causal=True, window_size=(31, 0)).sum().backward()
        >>> q.grad.shape
        torch.Size([2, 100, 8, 64])
    """
    me = "flash_attn_func"
    refuse(
        me,
        "",
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        attention_chunk=attention_chunk or None,
        gather_kv_indices=gather_kv_indices,
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
        block_sparse_tensors=block_sparse_tensors,
        block_sparse_tensors_bwd=block_sparse_tensors_bwd,
    )
    tensors(me, 3, q=q, k=k, v=v, alibi_slopes=alibi_slopes, learnable_sink=learnable_sink)
    call = Call(
        me,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        learnable_sink=learnable_sink,
        return_lse=return_lse,
    )
    return _batched(call, q, k, v)


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
    """`flash_attn_func` of keys and values in one array.

    Args:
        q: (batch, seqlen_q, nheads, headdim).
        kv: (batch, seqlen_k, 2, nheads_k, headdim).
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: as in
            `flash_attn_func`.

    Returns:
        As `flash_attn_func`.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "flash_attn_kvpacked_func"
    tensors(me, 2, q=q, kv=kv, alibi_slopes=alibi_slopes)
    k, v = _parts(me, "kv", kv, 2, "(batch, seqlen, 2, nheads_k, headdim)")
    call = Call(
        me,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )
    return _batched(call, q, k, v, "kv", "kv")


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
    *,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
) -> Returned:
    """`flash_attn_func` of queries, keys and values in one array, on `retrograd.attention_qkvpacked`.

    On a GPU the kernels write the one gradient of `qkv` without a copy.

    Args:
        qkv: (batch, seqlen, 3, nheads, headdim); or with `num_heads_q`, (batch, seqlen, nheads + 2 nheads_k, headdim).
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: as in
            `flash_attn_func`.
        num_heads_q: the number of heads of queries, where qkv has four dimensions.
        sm_margin: no effect.
        q_descale, k_descale, v_descale, attention_chunk: refused.

    Returns:
        As `flash_attn_func`.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "flash_attn_qkvpacked_func"
    chunk = attention_chunk or None
    refuse(me, "", q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=chunk)
    tensors(me, 1, qkv=qkv, alibi_slopes=alibi_slopes)
    call = Call(
        me,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )
    if qkv.ndim == 4 and num_heads_q is not None:
        return _batched(call, *_split_heads(me, qkv, num_heads_q), "qkv", "qkv")
    q, k, _ = _parts(me, "qkv", qkv, 3, "(batch, seqlen, 3, nheads, headdim)")
    arguments = call.arguments(q, q.shape[0])
    out, lse = call.attend_packed(qkv, **arguments)
    return call.returned(out, lse, lambda: signed_probabilities(call, q, k, arguments, q.shape[1], k.shape[1]))


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
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    min_seqlen_k: int | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    score_mod_bwd: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    block_sparse_tensors: Any = None,
    aux_tensors: list[Tensor] | None = None,
    aux_scalars: tuple[Any, ...] | None = None,
    return_lse: bool = False,
    scheduler_metadata: Any = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
) -> Returned:
    """`flash_attn_func` of packed sequences. Those without keys, or without queries, are allowed.

    Args:
        q: (total_q, nheads, headdim).
        k: (total_k, nheads_k, headdim).
        v: (total_k, nheads_k, headdim_v).
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) int32: boundaries of the sequences.
        max_seqlen_q, max_seqlen_k: no effect; on a CPU a smaller number than the longest length is an error.
        dropout_p, softmax_scale, causal, window_size, softcap, deterministic, learnable_sink, return_lse: as in
            `flash_attn_func`.
        alibi_slopes: (nheads,) or (batch, nheads).
        return_attn_probs: as in `flash_attn_func`; with dropout the host waits for the lengths.
        seqused_q, seqused_k: (batch,) int32: how many steps of each sequence are used, from its start.
        num_splits, pack_gqa, sm_margin, min_seqlen_k, scheduler_metadata, seqlen_k_per_split,
            disable_scheduler_metadata: no effect.
        block_table, page_table, qv, q_descale, k_descale, v_descale, attention_chunk, gather_kv_indices, score_mod,
            score_mod_bwd, mask_mod, block_sparse_tensors, aux_tensors, aux_scalars: refused.

    Returns:
        out (total_q, nheads, headdim_v); lse is (nheads, total_q), and the signed probabilities of `return_attn_probs`
        are (batch, nheads, longest of q, longest of k). Steps that are not used have zeros, and -inf as lse; steps of
        no sequence have zeros.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.flash_attn import flash_attn_varlen_func
        >>> q, ends = torch.randn(100, 8, 64), torch.tensor([0, 30, 100], dtype=torch.int32)
        >>> flash_attn_varlen_func(q, q, q, ends, ends, 70, 70, causal=True).shape
        torch.Size([100, 8, 64])
    """
    me = "flash_attn_varlen_func"
    refuse(
        me,
        "",
        block_table=block_table,
        page_table=page_table,
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        attention_chunk=attention_chunk or None,
        gather_kv_indices=gather_kv_indices,
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        block_sparse_tensors=block_sparse_tensors,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
    )
    tensors(
        me,
        5,
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        alibi_slopes=alibi_slopes,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        learnable_sink=learnable_sink,
    )
    call = Call(
        me,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        learnable_sink=learnable_sink,
        return_lse=return_lse,
    )
    bounds = cu_seqlens_q, cu_seqlens_k
    return _packed(call, q, k, v, bounds, (max_seqlen_q, max_seqlen_k), (seqused_q, seqused_k))


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
    """`flash_attn_varlen_func` of keys and values in one array.

    Args:
        q: (total_q, nheads, headdim).
        kv: (total_k, 2, nheads_k, headdim).
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap,
            alibi_slopes, deterministic, return_attn_probs: as in `flash_attn_varlen_func`.

    Returns:
        As `flash_attn_varlen_func`.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "flash_attn_varlen_kvpacked_func"
    tensors(me, 4, q=q, kv=kv, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes)
    k, v = _parts(me, "kv", kv, 2, "(total, 2, nheads_k, headdim)")
    call = Call(
        me,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )
    bounds = cu_seqlens_q, cu_seqlens_k
    return _packed(call, q, k, v, bounds, (max_seqlen_q, max_seqlen_k), (None, None), "kv", "kv")


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
    """`flash_attn_varlen_func` of queries, keys and values in one array, on `retrograd.attention_qkvpacked`.

    Args:
        qkv: (total, 3, nheads, headdim).
        cu_seqlens: (batch + 1,) int32: boundaries of the sequences.
        max_seqlen: no effect; on a CPU a smaller number than the longest length is an error.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs: as in
            `flash_attn_varlen_func`.

    Returns:
        As `flash_attn_varlen_func`.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "flash_attn_varlen_qkvpacked_func"
    tensors(me, 2, qkv=qkv, cu_seqlens=cu_seqlens, alibi_slopes=alibi_slopes)
    q, k, _ = _parts(me, "qkv", qkv, 3, "(total, 3, nheads, headdim)")
    call = Call(
        me,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )
    expect_boundaries(me, "cu_seqlens", cu_seqlens, max_seqlen, "max_seqlen")
    arguments = call.arguments(q, len(cu_seqlens) - 1)
    out, lse = call.attend_packed(qkv[None], cu_seqlens=cu_seqlens, **arguments)
    bounds = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}

    def probabilities() -> Tensor:
        most = longest(cu_seqlens)
        return signed_probabilities(call, q[None], k[None], arguments | bounds, most, most)

    return call.returned(out[0], lse[0], probabilities)


def _batched(call: Call, q: Tensor, k: Tensor, v: Tensor, *names: str) -> Returned:
    """The results for arrays of four dimensions; `names` are those of the arguments that hold k and v."""
    expect_heads(call.me, q, k, v, BATCHED, *names)
    arguments = call.arguments(q, q.shape[0])
    out, lse = call.attend(q, k, v, **arguments)
    return call.returned(out, lse, lambda: signed_probabilities(call, q, k, arguments, q.shape[1], k.shape[1]))


def _packed(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: tuple[Tensor, Tensor],
    lengths: tuple[Any, Any],
    used: tuple[Tensor | None, Tensor | None],
    *names: str,
) -> Returned:
    """The results for packed sequences, each pair first that of queries."""
    me, sequences = call.me, len(bounds[0]) - 1
    expect_heads(me, q, k, v, PACKED, *names)
    for side, numbers, length, part in zip("qk", bounds, lengths, used, strict=True):
        expect_boundaries(me, f"cu_seqlens_{side}", numbers, length, f"max_seqlen_{side}")
        expect(me, f"cu_seqlens_{side}", numbers, (sequences + 1,), "(batch + 1,)", "int32 or int64")
        expect_used(me, f"seqused_{side}", part, numbers)
    arguments = call.arguments(q, sequences)
    parts = bounds
    if used != (None, None):
        parts = used_parts(*bounds, *used)
        arguments["alibi_slopes"] = of_parts(arguments["alibi_slopes"])
    arguments |= {"cu_seqlens_q": parts[0], "cu_seqlens_k": parts[1]}
    out, lse = call.attend(q[None], k[None], v[None], **arguments)

    def probabilities() -> Tensor:
        most = [longest(numbers) for numbers in bounds]
        found = signed_probabilities(call, q[None], k[None], arguments, *most)
        return found if parts is bounds else found[::3]

    return call.returned(out[0], lse[0], probabilities)


def _parts(me: str, name: str, array: Tensor, count: int, layout: str) -> tuple[Tensor, ...]:
    """The arrays that lie side by side in the last dimension but two."""
    expect_dims(me, name, array, layout)
    expect(me, name, array, (*array.shape[:-3], count, *array.shape[-2:]), layout)
    return array.unbind(-3)


def _split_heads(me: str, qkv: Tensor, num_heads_q: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values whose heads lie one after the other."""
    check_option(me, "num_heads_q", num_heads_q, "int")
    others = qkv.shape[2] - num_heads_q
    if num_heads_q < 0 or others < 0 or others % 2:
        raise bad_shape(me, "qkv", qkv.shape, f"(batch, seqlen, {num_heads_q} + 2 nheads_k, headdim)")
    q, k, v = qkv.split([num_heads_q, others // 2, others // 2], 2)
    return q, k, v
