"""Rotary position embedding: pairs of channels are rotated by angles that grow with the position."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrograd.core.torch.rotary import rotated
from retrograd.models.layers import AttentionConfig


# An operator of its own, so that a compiled model has one table for all layers instead of powers in every element.
@torch.library.custom_op("retrograd::rotary_tables", mutates_args=())
def rotary_tables(position: Tensor, d: int, base: float, dtype: torch.dtype) -> Tensor:
    """cos and sin (2, T, d / 2) of the angles position * base^(-2 i / d).

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.2.
    """
    # float64 until rounded once: at late positions an angle has the error of its rate many times over.
    rates = (base ** -(torch.arange(0, d, 2, device=position.device, dtype=torch.float64) / d)).to(dtype)
    angle = position[:, None] * rates
    return torch.stack((angle.cos(), angle.sin()))


@rotary_tables.register_fake
def _(position: Tensor, d: int, base: float, dtype: torch.dtype) -> Tensor:
    return position.new_empty(2, position.shape[0], d // 2, dtype=dtype)


@rotary_tables.register_vmap
def _(info: Any, in_dims: Any, position: Tensor, d: int, base: float, dtype: torch.dtype) -> tuple[Tensor, int]:
    tables = rotary_tables(position.movedim(in_dims[0], 0).flatten(), d, base, dtype)
    return tables.unflatten(1, (info.batch_size, -1)), 1


def kept_tables(rows: int, config: AttentionConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`rotary_tables` of positions from 0, in at least float32."""
    arguments = (rows, config.rotary_emb_dim, config.rotary_emb_base, dtype, device)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing() and arguments not in _TABLES:
        return _tables(*arguments)  # what a graph computes is there when it runs, and not before
    if arguments not in _TABLES:
        _TABLES[arguments] = _tables(*arguments)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # other streams read it, too
    return _TABLES[arguments]


_TABLES: dict[Any, Tensor] = {}  # all are kept, since CUDA graphs have their addresses


def _tables(rows: int, d: int, base: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        position = torch.arange(rows, device=device)
        return rotary_tables(position, d, base, torch.promote_types(dtype, torch.float32))


def rotate(
    x: Float[Tensor, "B T H P"], position: Int[Tensor, " T"], config: AttentionConfig
) -> Float[Tensor, "B T H P"]:
    """Rotate the first d = rotary_emb_dim channels of every head by `rotary_tables`, in at least float32.

    A pair is channels i and i + d / 2, or if interleaved 2 i and 2 i + 1.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = rotary_tables(position, config.rotary_emb_dim, config.rotary_emb_base, wide)[:, :, None]
    return rotated(x, cos, sin, config.rotary_emb_interleaved)
