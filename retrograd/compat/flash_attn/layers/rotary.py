"""`flash_attn.layers.rotary`: the rotation of pairs of channels."""

from __future__ import annotations

import torch
from torch import Tensor

from retrograd.compat.checks import expect, expect_dims, expect_if_given, flag
from retrograd.compat.dtypes import arithmetic
from retrograd.compat.flash_attn.calls import readable
from retrograd.compat.flash_attn.packing import owners
from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.rotary import rotated


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """x with the first R pairs of channels of each head rotated by the angles of its position.

    Args:
        x: (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with `cu_seqlens`.
        cos, sin: (positions, R): of the angles.
        interleaved: whether pairs are channels 2 i and 2 i + 1, not i and i + R.
        inplace: whether x is overwritten.
        seqlen_offsets: the position of the first step, an int, or (batch,) one for each sequence.
        cu_seqlens: (batch + 1,): boundaries of packed sequences.
        max_seqlen: no effect.

    Returns:
        The shape and dtype of x; x itself with `inplace`.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.4.2.

    Example:
        >>> import torch
        >>> from retrograd.compat.flash_attn.layers.rotary import apply_rotary_emb
        >>> angles = torch.arange(16)[:, None] * 10000 ** (-torch.arange(4) / 4)
        >>> apply_rotary_emb(torch.randn(2, 16, 3, 8), angles.cos(), angles.sin()).shape
        torch.Size([2, 16, 3, 8])
    """
    me = "apply_rotary_emb"
    offsets = seqlen_offsets if isinstance(seqlen_offsets, Tensor) else None
    given = {"x": x, "cos": cos, "sin": sin, "cu_seqlens": cu_seqlens, "seqlen_offsets": offsets}
    check_tensors(me, given, required=3)
    layout = "(batch, seqlen, nheads, headdim)" if cu_seqlens is None else "(total, nheads, headdim)"
    expect_dims(me, "x", x, layout)
    expect(me, "x", x, x.shape, layout)
    expect_tables(me, x, cos, sin, names=("cos", "sin"))
    sequences = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    expect_if_given(me, "seqlen_offsets", offsets, (sequences,), "(batch,)", "int32 or int64")
    if offsets is None and (not isinstance(seqlen_offsets, int) or isinstance(seqlen_offsets, bool)):
        raise bad_type(me, "seqlen_offsets", seqlen_offsets, "an int or a torch.Tensor")
    position: Tensor
    if cu_seqlens is None:
        first = seqlen_offsets if offsets is None else offsets[:, None]
        position = torch.arange(x.shape[1], device=x.device) + first
    else:
        owner, position = owners(cu_seqlens, x.shape[0])
        position = position + (seqlen_offsets if offsets is None else offsets[owner])
    if readable(position) and position.numel():
        last = int(position.max())
        if last >= len(cos) or int(position.min()) < 0:
            raise bad_value(me, "seqlen_offsets", seqlen_offsets, f"positions from 0 to {len(cos) - 1}, those of cos")
    result = rotate(x, cos, sin, position, flag(me, "interleaved", interleaved))
    return x.copy_(result) if flag(me, "inplace", inplace) else result


def rotate(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
    """x (..., heads, channels) rotated by the rows of the tables at `position`, in the dtype of the arithmetic."""
    cos, sin = (table.to(arithmetic(x))[position][..., None, :] for table in (cos, sin))
    return rotated(x, cos, sin, interleaved)


def expect_tables(me: str, x: Tensor, cos: Tensor, sin: Tensor, names: tuple[str, str]) -> None:
    """Raise unless two tables have this shape, with at most as many columns as x has pairs of channels."""
    expect_dims(me, names[0], cos, "(positions, pairs)")
    if 2 * cos.shape[1] > x.shape[-1]:
        raise bad_shape(me, names[0], cos.shape, f"(positions, at most {x.shape[-1] // 2} pairs of channels)")
    for name, table in zip(names, (cos, sin), strict=True):
        expect(me, name, table, cos.shape, "(positions, pairs)")
