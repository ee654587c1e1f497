"""`flash_attn.bert_padding`: from padded batches to packed sequences, and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.compat.checks import expect
from retrograd.core.errors import bad_shape
from retrograd.core.torch.arguments import check_tensors

from .packing import longest


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """`input[indices]`, for indices (n,) of the first axis."""
    return input[indices]


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The steps of a padded batch that a mask names, as packed sequences. The host waits for their number.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), True or 1 at the steps of a sequence.
        unused_mask: (batch, seqlen), True or 1 at steps that are kept, too, but not counted in `seqused`.

    Returns:
        The steps (total, ...); their indices (total,) in the flattened batch; cu_seqlens (batch + 1,) int32; the
        longest length, an int; and seqused (batch,) int32, the number of steps that attention_mask names.

    Raises:
        ValueError, TypeError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.flash_attn.bert_padding import pad_input, unpad_input
        >>> x, mask = torch.randn(2, 3, 8), torch.tensor([[1, 1, 0], [1, 1, 1]])
        >>> steps, indices, cu_seqlens, longest, _ = unpad_input(x, mask)
        >>> cu_seqlens, longest
        (tensor([0, 2, 5], dtype=torch.int32), 3)
        >>> pad_input(steps, indices, 2, 3).shape
        torch.Size([2, 3, 8])
    """
    me = "unpad_input"
    given = {"hidden_states": hidden_states, "attention_mask": attention_mask, "unused_mask": unused_mask}
    check_tensors(me, given, required=2)
    if hidden_states.ndim < 2:
        raise bad_shape(me, "hidden_states", hidden_states.shape, "(batch, seqlen, ...)")
    for name, mask in (("attention_mask", attention_mask), ("unused_mask", unused_mask)):
        if mask is not None and mask.shape != hidden_states.shape[:2]:
            raise bad_shape(me, name, mask.shape, f"(batch, seqlen) = {tuple(hidden_states.shape[:2])}")
    used = attention_mask.bool()
    kept = used if unused_mask is None else used | unused_mask.bool()
    lengths = kept.sum(1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    steps = index_first_axis(hidden_states.flatten(0, 1), indices)
    cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return steps, indices, cu_seqlens, longest(cu_seqlens), used.sum(1, dtype=torch.int32)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of `unpad_input`: (batch, seqlen, ...) of steps (total, ...), zeros elsewhere.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "pad_input"
    check_tensors(me, {"hidden_states": hidden_states, "indices": indices}, required=2)
    expect(me, "indices", indices, hidden_states.shape[:1], "(total,)", "int32 or int64")
    rows = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    return rows.index_copy(0, indices.long(), hidden_states).unflatten(0, (batch, seqlen))
