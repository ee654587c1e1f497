"""Rotation of pairs of channels, from tables of cosines and sines."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rotated(
    x: Float[Tensor, "*batch P"], cos: Float[Tensor, "*batch R"], sin: Float[Tensor, "*batch R"], interleaved: bool
) -> Float[Tensor, "*batch P"]:
    """x with the first R pairs of channels rotated, in the dtype of the tables; pairs are (i, i + R) or (2 i, 2 i + 1).

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.4.2.
    """
    pairs = cos.shape[-1]
    first, rest = x[..., : 2 * pairs].to(cos.dtype), x[..., 2 * pairs :]
    a, b = first.unflatten(-1, (pairs, 2)).unbind(-1) if interleaved else first.chunk(2, dim=-1)
    # Rounded before they are joined: compiled, each half is then written once.
    pair = ((a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype))
    if interleaved:
        return torch.cat((torch.stack(pair, dim=-1).flatten(-2), rest), dim=-1)
    return torch.cat((*pair, rest), dim=-1)
