"""Rotary position embedding: pairs of channels are rotated by angles that grow with the position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrograd.models.layers import AttentionConfig


def rotate(
    x: Float[Tensor, "B T H P"], position: Int[Tensor, " T"], config: AttentionConfig
) -> Float[Tensor, "B T H P"]:
    """Rotate the first d = rotary_emb_dim channels of every head, pair i by position * base^(-2 i / d), in float32.

    A pair is channels i and i + d / 2, or if interleaved 2 i and 2 i + 1.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.2.
    """
    d, interleaved = config.rotary_emb_dim, config.rotary_emb_interleaved
    wide = torch.promote_types(x.dtype, torch.float32)
    # float64 until rounded once: at late positions an angle has the error of its rate many times over.
    rates = (config.rotary_emb_base ** -(torch.arange(0, d, 2, device=x.device, dtype=torch.float64) / d)).to(wide)
    angle = (position[:, None] * rates)[:, None]  # (T, 1, d / 2)
    cos, sin = angle.cos(), angle.sin()
    rotated, rest = x[..., :d].to(wide), x[..., d:]
    a, b = rotated.unflatten(-1, (d // 2, 2)).unbind(-1) if interleaved else rotated.chunk(2, dim=-1)
    pair = (a * cos - b * sin, a * sin + b * cos)
    rotated = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((rotated.to(x.dtype), rest), dim=-1)
