"""transformers' attention on `retrograd.attention`, by `attn_implementation="retrograd"`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

import retrograd
from retrograd.compat.checks import expect, refuse
from retrograd.compat.dropout import dropout_options
from retrograd.compat.dtypes import full
from retrograd.compat.sequences import joined
from retrograd.core.errors import bad_shape, bad_type

from .masks import Mask, bias_of, mask_of
from .positions import sequences

NAME = "retrograd"
REFUSED = ("output_attentions", "head_mask", "block_table", "indices", "block_indices", "sinks")


def register() -> str:
    """Let models of transformers run their attention on `retrograd.attention`.

    A model is then made or loaded with `attn_implementation="retrograd"`, or switched to it by
    `model.set_attn_implementation("retrograd")`. It registers two functions: one computes attention, the other makes
    the masks for it. Padding, packed sequences (`position_ids` that restart, or `cu_seq_lens_q`), sliding windows, soft
    caps, sinks, position biases and their gradients, dropout and caches are honoured. What is not is refused by name:
    `output_attentions`, and tables of blocks or of indices of keys.

    Returns:
        The name, "retrograd".

    Example:
        >>> import torch, transformers
        >>> from retrograd.compat.transformers import register
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=register())
        >>> tokens = torch.randint(32, (2, 10))
        >>> model(tokens, labels=tokens).loss.backward()
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask_of)
    return NAME


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    position_ids: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention with the arguments that the models of transformers pass.

    Args:
        module: the layer.
        query, key, value: (B, H, T, D); fewer heads of key and value are shared.
        attention_mask: a `Mask`; or (B or 1, H or 1, Tq or 1, Tk), bool or added to the scores.
        dropout: share of the probabilities that are dropped.
        scaling: factor of the products; 1 / sqrt(D) by default.
        sliding_window: keys that a query sees, its own included; a `Mask` has its own.
        softcap: bound of the scores.
        is_causal: by default as the layer says; a mask says it itself.
        s_aux: (H,), sinks.
        position_bias: (B or 1, H or 1, Tq, Tk), added to the scores.
        position_ids: (B or 1, T): where they restart, in a call without mask and cache, another sequence begins.
        seq_idx: (B, T), the number of each step's sequence; negative ones are padding. Mamba-2's family has it.
        cu_seq_lens_q, cu_seq_lens_k: boundaries of packed sequences.
        others: what other implementations take.

    Returns:
        (B, T, H, Dv), and None in place of the probabilities.

    Raises:
        NotImplementedError: for an argument that would be ignored: `output_attentions`, `block_table`, `indices`, ...
        ValueError, TypeError: for a mask of another kind, and whatever `retrograd.attention` refuses.
    """
    why = ' by attn_implementation="retrograd"'
    refuse("attention", why, **{name: others[name] for name in REFUSED if name in others})
    q, k, v = (array.transpose(1, 2) for array in (query, key, value))
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    mask = _mask(attention_mask, q, k, is_causal, sliding_window)
    options: dict[str, Any] = {"causal": mask.causal, "scale": scaling, "softcap": softcap}
    options |= dropout_options(dropout, q.device)
    if mask.window is not None:
        options["window"] = (mask.window, 0 if mask.causal else mask.window)
    if s_aux is not None:
        options["sinks"] = full(q, s_aux)
    biases = [bias for bias in (mask.bias, position_bias) if bias is not None]
    if biases:
        bias = sum(biases[1:], biases[0])
        options["bias"] = bias if bias.dtype in (q.dtype, torch.float32) else bias.float()
    if cu_seq_lens_q is not None:
        return _packed(q, k, v, cu_seq_lens_q, cu_seq_lens_k, options), None
    segment_ids = mask.segment_ids
    if segment_ids is None and seq_idx is None and mask.unpadded and position_ids is not None:
        segment_ids = sequences(position_ids, *q.shape[:2])
    if seq_idx is not None:
        expect("attention", "seq_idx", seq_idx, q.shape[:2], "(batch, queries)", "int32 or int64")
        numbers = seq_idx.int()
        segment_ids = numbers if segment_ids is None else torch.where(segment_ids < 0, -1, numbers)
    return retrograd.attention(q, k, v, segment_ids=segment_ids, **options), None


def _mask(given: Mask | Tensor | None, q: Tensor, k: Tensor, is_causal: bool, sliding_window: int | None) -> Mask:
    """What a layer's queries see."""
    if isinstance(given, Mask):
        return given
    window = None if sliding_window is None else sliding_window - 1  # transformers counts a query's own key
    if given is None:
        return Mask(is_causal, window, unpadded=is_causal and q.shape[1] == k.shape[1])
    if not isinstance(given, Tensor):
        raise bad_type("attention", "attention_mask", given, "a mask of transformers, a torch.Tensor or None")
    if given.ndim == 4:
        return Mask(causal=False, bias=bias_of(given, q.dtype) if given.dtype == torch.bool else given)
    if given.ndim == 2 and given.shape[1] >= k.shape[1]:
        return Mask(is_causal, window, bias=bias_of(given[:, None, None, : k.shape[1]] != 0, q.dtype))
    raise bad_shape("attention", "attention_mask", given.shape, "(batch, keys) or (batch, heads, queries, keys)")


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """Attention of sequences whose boundaries count over all rows."""
    ends_q = cu_seqlens_q.int()
    ends_k = ends_q if cu_seqlens_k is None else cu_seqlens_k.int()
    out = retrograd.attention(*map(joined, (q, k, v)), cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, **options)
    return out.view(*q.shape[:3], v.shape[-1])
