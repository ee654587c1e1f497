"""The masks of transformers' models in the terms of `retrograd.attention`: few of them need an array.

A model makes a mask for each kind of its layers, by a function that is registered for the model's attention. Ours
returns a `Mask`, which transformers hands on to the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

from .positions import numbered

Sees = Callable[..., Any]  # (rows, heads, queries, keys), numbers of each -> whether the query sees the key


class Mask(NamedTuple):
    """What the queries of a model's layers see.

    Attributes:
        causal: whether a query sees no later key; the last query is at the position of the last key.
        window: the most keys that a query sees before its own, and after it if it is not causal; None for all.
        segment_ids: (B, T) int32, of packed sequences; -1 for padding.
        bias: (B, 1, 1 or Tq, Tk), 0 or -inf, what `causal` and `window` do not say.
        unpadded: whether the model got no mask and has no cache: `position_ids` then tell packed sequences apart.
    """

    causal: bool
    window: int | None = None
    segment_ids: Tensor | None = None
    bias: Tensor | None = None
    unpadded: bool = False

    @property
    def ndim(self) -> int:
        """No axes: before a model makes a mask it asks for those of what it got, which `generate` may have made."""
        return 0


def mask_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,  # a tensor where the cache is a static one
    kv_offset: Any = 0,
    mask_function: Sees = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,
) -> Mask | Tensor:
    """The mask for a model, with the arguments of the functions in transformers' `AttentionMaskInterface`.

    It is without an array for causal and bidirectional layers, with a window or without. Packed sequences, and padding
    where the queries are the keys, give segments; padding elsewhere, a bias of the keys. All else gives a dense bias,
    (B, 1, Tq, Tk): as a tensor, since `generate` passes such a mask twice if the cache is a static one.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    causal = allow_is_bidirectional_skip is None  # masks of causal layers are made without this argument
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)

    def dense() -> Tensor:
        sees = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        assert sees is not None
        return bias_of(sees, dtype)

    aligned = all(isinstance(offset, int) for offset in (q_offset, kv_offset)) and (
        q_offset + q_length == kv_offset + kv_length
    )
    if use_vmap or (not aligned and (causal or local_size is not None)):
        return dense()
    window = local_size
    if causal and local_size is not None:
        if local_size == getattr(config, "attention_chunk_size", None):
            # With padding, chunks begin at a row's first token.
            if padding is not None or kv_length + kv_offset > local_size:
                return dense()
            window = None
        else:
            window = local_size - 1  # transformers counts a query's own key
    if causal and not allow_is_causal_skip:
        # Packed sequences, or blocks of tokens that see ahead.
        if padding is not None or q_length != kv_length:
            return dense()
        segments = segments_of(mask_function, batch_size, q_length, torch.device(device))
        return dense() if segments is None else Mask(causal, window, segments)
    mask = Mask(causal, window, unpadded=padding is None and q_length == kv_length)
    if padding is None:
        return mask
    return with_padding(mask, padding[:, kv_offset : kv_offset + kv_length], q_length, dtype)


def with_padding(mask: Mask, tokens: Tensor, queries: int, dtype: torch.dtype) -> Mask:
    """A mask and padding: tokens (B, Tk) bool.

    Padding before and after a row's tokens gives segments, whose kernels are the faster ones. Under `torch.compile`
    nothing is known of its numbers, and it gives a bias.
    """
    if not torch.compiler.is_compiling():
        starts = tokens & ~pad(tokens[:, :-1], (1, 0))
        whole, one_run = torch.stack([tokens.all(), (starts.sum(-1) <= 1).all()]).tolist()
        if whole:
            return mask
        if one_run and queries == tokens.shape[1]:
            return mask._replace(segment_ids=tokens.int() - 1)
    return mask._replace(bias=bias_of(tokens[:, None, None], dtype))


def segments_of(sees: Sees, batch: int, steps: int, device: torch.device) -> Tensor | None:
    """(B, T) int32, the packed sequences of a causal mask, which begin where a step does not see the one before it.

    None if a step sees the one after it, as in blocks of an image's tokens: the mask is then not causal. Under
    `torch.compile`, where this cannot be known, it stops the program on the device.
    """
    rows = torch.arange(batch, device=device)[:, None]
    earlier = torch.arange(steps - 1, device=device)[None]
    later = earlier + 1
    heads = torch.zeros((), dtype=torch.int64, device=device)
    ahead = sees(rows, heads, earlier, later).any()
    if torch.compiler.is_compiling():
        torch._assert_async(~ahead, "retrograd: a mask with blocks that see ahead does not compile")
    elif bool(ahead):
        return None
    return numbered(~sees(rows, heads, later, earlier).expand(batch, -1))


def bias_of(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is seen, else -inf."""
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, -torch.inf)
