"""`flash_attn_with_kvcache`: attention over caches of keys and values."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd import attention, attention_step_
from retrograd.compat.checks import expect, expect_dims, expect_if_given, flag, refuse
from retrograd.compat.dtypes import arithmetic
from retrograd.compat.sequences import joined
from retrograd.core.errors import bad_shape, bad_type, bad_value

from .calls import Window, expect_extras, expect_heads, naming, options, readable, tensors
from .layers.rotary import expect_tables, rotate

LAYOUT = "(batch, seqlen, nheads, headdim)"


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    qv: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    scheduler_metadata: Any = None,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of a few queries over the caches, into which new keys and values are written first. Has no gradient.

    A step of one key for each row with dense caches, and without padding, row indices, slopes and lse, runs on
    `retrograd.attention_step_`. Its bits are those of the whole sequence.

    Args:
        q: (batch, seqlen, nheads, headdim).
        k_cache: (rows, capacity, nheads_k, headdim); as many rows as the batch, or more with `cache_batch_idx`.
        v_cache: (rows, capacity, nheads_k, headdim_v).
        k, v: (batch, seqlen_new, nheads_k, ...): keys and values that are written after those in the caches.
        rotary_cos, rotary_sin: (capacity or more, R): of the angles by which R pairs of channels of q and k are rotated
            at each position, counted from the start of the cache. Without `causal` and `window_size`, all queries have
            the position of the first new key. Only with k and v. A query after the last position has NaN as its
            result; on a CPU it is an error.
        cache_seqlens: (batch,) int32, or an int: the steps that each row of the caches has. Needed with k and v; the
            whole cache otherwise.
        cache_batch_idx: (batch,) int32: the rows of the caches that belong to the rows of q. They are copied.
        cache_leftpad: (batch,) int32: the first step of each row of the caches.
        softmax_scale, causal, window_size, softcap, alibi_slopes: as in `flash_attn_func`.
        rotary_interleaved: whether pairs are channels 2 i and 2 i + 1, not i and i + R.
        return_softmax_lse: also return the logarithms of the sums of exponentials.
        num_splits, max_seqlen_q, scheduler_metadata, pack_gqa, sm_margin: no effect.
        block_table, page_table, qv, cu_seqlens_q, cu_seqlens_k_new, rotary_seqlens, q_descale, k_descale, v_descale,
            attention_chunk: refused.

    Returns:
        out (batch, seqlen, nheads, headdim_v); with `return_softmax_lse`, (out, lse (batch, nheads, seqlen)). A row
        without room for its new keys has NaN as its result, and its last slots are overwritten; on a CPU it is an
        error.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.flash_attn import flash_attn_with_kvcache
        >>> q, k, v = torch.randn(2, 1, 8, 64), torch.randn(2, 1, 2, 64), torch.randn(2, 1, 2, 64)
        >>> k_cache, v_cache = torch.zeros(2, 100, 2, 64), torch.zeros(2, 100, 2, 64)
        >>> flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=7, causal=True).shape
        torch.Size([2, 1, 8, 64])
        >>> bool((k_cache[:, 7:8] == k).all())
        True
    """
    me = "flash_attn_with_kvcache"
    refuse(
        me,
        "",
        block_table=block_table,
        page_table=page_table,
        qv=qv,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new,
        rotary_seqlens=rotary_seqlens,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        attention_chunk=attention_chunk or None,
    )
    lengths = cache_seqlens if isinstance(cache_seqlens, Tensor) else None
    tensors(
        me,
        3,
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        k=k,
        v=v,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_seqlens=lengths,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        alibi_slopes=alibi_slopes,
    )
    settings = options(me, softmax_scale, causal, window_size, softcap)
    returns_lse = flag(me, "return_softmax_lse", return_softmax_lse)
    interleaved = flag(me, "rotary_interleaved", rotary_interleaved)
    _expect_together(me, k=k, v=v)
    _expect_together(me, rotary_cos=rotary_cos, rotary_sin=rotary_sin)
    expect_dims(me, "q", q, LAYOUT)
    expect_dims(me, "k_cache", k_cache, LAYOUT)
    batch, queries, capacity = *q.shape[:2], k_cache.shape[1]
    like = q if cache_batch_idx is None else q.new_empty(1).expand(len(k_cache), *q.shape[1:])
    expect_heads(me, like, k_cache, v_cache, LAYOUT, "k_cache", "v_cache")
    for name, numbers in (
        ("cache_seqlens", lengths),
        ("cache_batch_idx", cache_batch_idx),
        ("cache_leftpad", cache_leftpad),
    ):
        expect_if_given(me, name, numbers, (batch,), "(batch,)", "int32 or int64")
    extras = expect_extras(me, q, batch, alibi_slopes)
    before = _lengths(me, cache_seqlens, batch, capacity if k is None else None, q.device)
    start = torch.zeros_like(before) if cache_leftpad is None else cache_leftpad.int()
    tables = None
    if rotary_cos is not None and rotary_sin is not None:
        if k is None:
            raise bad_value(me, "rotary_cos", "a tensor", "None, since k and v are None")
        expect_tables(me, q, rotary_cos, rotary_sin, ("rotary_cos", "rotary_sin"))
        if len(rotary_cos) < capacity:
            raise bad_shape(me, "rotary_cos", rotary_cos.shape, f"at least {capacity} positions, those of k_cache")
        tables = rotary_cos.to(arithmetic(q)), rotary_sin.to(arithmetic(q))
    if k is not None and v is not None:
        expect_heads(me, q, k, v, LAYOUT)
        for name, array, cache in (("k", k, k_cache), ("v", v, v_cache)):
            expect(me, name, array, (*array.shape[:2], *cache.shape[2:]), LAYOUT)
    after = before + (0 if k is None else k.shape[1])
    _expect_room(me, before, start, after, capacity)

    plain = cache_batch_idx is None and cache_leftpad is None and alibi_slopes is None and not returns_lse
    direct = k_cache.is_contiguous() and v_cache.is_contiguous() and not torch.compiler.is_compiling()
    if k is not None and v is not None and k.shape[1] == queries == 1 and plain and direct:
        cos, sin = (None, None) if tables is None else (table[:capacity] for table in tables)
        shared = {name: settings[name] for name in ("window", "scale", "softcap")}
        arrays = q[:, 0], k[:, 0], v[:, 0], k_cache, v_cache, before
        with naming(me, q.device):
            return attention_step_(*arrays, cos=cos, sin=sin, interleaved=interleaved, **shared)[0][:, None]

    if k is not None and v is not None:
        step = torch.arange(k.shape[1], device=q.device)
        slots = (before[:, None] + step).clamp(max=capacity - 1).long()
        if tables is not None:
            moves = settings["causal"] or settings["window"] is not None
            place = before[:, None] + torch.arange(queries, device=q.device) * moves
            last = len(tables[0]) - 1
            if readable(place) and place.numel() and int(place.max()) > last:
                raise bad_shape(me, "rotary_cos", tables[0].shape, f"{int(place.max()) + 1} positions, those of q")
            q = rotate(q, *tables, place.clamp(max=last), interleaved)
            q = q.masked_fill((place > last)[..., None, None], torch.nan)
            k = rotate(k, *tables, slots, interleaved)
        row = torch.arange(batch, device=q.device) if cache_batch_idx is None else cache_batch_idx.long()
        k_cache[row[:, None], slots] = k
        v_cache[row[:, None], slots] = v
    q = q.masked_fill((after > capacity)[:, None, None, None], torch.nan)
    keys, values = (cache if cache_batch_idx is None else cache[cache_batch_idx] for cache in (k_cache, v_cache))
    with naming(me, q.device):
        out, lse = attention(
            *map(joined, (q, keys, values)),
            cu_seqlens_q=_between(queries, 0, torch.full_like(after, queries)),
            cu_seqlens_k=_between(capacity, start, after.clamp(max=capacity)),
            alibi_slopes=_of_gaps(extras["alibi_slopes"]),
            return_lse=True,
            **settings,
        )
    out = out[0].unflatten(0, (batch, queries))
    return (out, lse[0].unflatten(1, (batch, queries)).transpose(0, 1)) if returns_lse else out


def _between(size: int, first: Tensor | int, last: Tensor) -> Tensor:
    """Boundaries of rows of `size` steps as packed sequences: of each row what lies from first to last, and the rest.

    There is one sequence more after the last row, without steps, so that a batch may be empty.
    """
    row = torch.arange(len(last), device=last.device, dtype=torch.int32) * size
    return F.pad(torch.stack((row + first, row + last), 1).flatten(), (0, 2), value=len(last) * size)


def _of_gaps(slopes: Tensor | None) -> Tensor | None:
    """Slopes of rows as those of the sequences of `_between`."""
    if slopes is None or slopes.ndim == 1:
        return slopes
    return F.pad(slopes.repeat_interleave(2, 0), (0, 0, 0, 1))


def _lengths(me: str, cache_seqlens: Any, batch: int, otherwise: int | None, device: torch.device) -> Tensor:
    """The steps that the rows of the caches have, (batch,) int32; `otherwise` where the argument is None."""
    if cache_seqlens is None:
        cache_seqlens = otherwise
    if isinstance(cache_seqlens, Tensor):
        return cache_seqlens.int()
    if cache_seqlens is None:
        raise bad_value(me, "cache_seqlens", None, "the steps in the caches, since k and v are given")
    if not isinstance(cache_seqlens, int | torch.SymInt) or isinstance(cache_seqlens, bool):
        raise bad_type(me, "cache_seqlens", cache_seqlens, "an int or a torch.Tensor")
    return torch.full((batch,), int(cache_seqlens), dtype=torch.int32, device=device)


def _expect_together(me: str, **pair: Tensor | None) -> None:
    """Raise for one of two arguments without the other."""
    missing = [name for name, value in pair.items() if value is None]
    if len(missing) == 1:
        (given,) = pair.keys() - set(missing)
        raise bad_value(me, missing[0], None, f"a tensor, since {given} is given")


def _expect_room(me: str, before: Tensor, start: Tensor, after: Tensor, capacity: int) -> None:
    """Raise for lengths and starts outside of the caches, where reading them costs nothing."""
    if not readable(before):
        return
    rows = zip(before.tolist(), start.tolist(), after.tolist(), strict=True)
    for length, first, last in rows:
        if not 0 <= length <= last <= capacity:
            expected = f"numbers from 0 to {capacity - (last - length)}, the capacity less the new keys"
            raise bad_value(me, "cache_seqlens", before.tolist(), expected)
        if not 0 <= first <= last:
            raise bad_value(me, "cache_leftpad", start.tolist(), f"numbers from 0 to {last} for a row with {last} keys")
