"""`attention` of queries, keys and values in one array."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from retrograd.core.errors import as_tuple
from retrograd.core.torch.arguments import as_array
from retrograd.core.torch.checks import checker
from retrograd.core.torch.stack import bind_stack

from .op import OP
from .packed import STACK, Packed

_attention = bind_stack(OP, STACK)
_check = checker(Packed)


def attention_qkvpacked(
    qkv: Tensor,
    *,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_seed: int | Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    segment_ids: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: Literal["auto", "split", "fused"] = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of queries, keys and values that a projection left in one array, without a copy of them.

    Args:
        qkv: (B, T, 3, H, D): queries, keys and values. Its gradient is one array, too: on a GPU the kernels write it
            without a copy; in a compiled graph, and under transforms, PyTorch puts it together from three.
        bias: as in `attention`.
        alibi_slopes: as in `attention`.
        sinks: as in `attention`.
        dropout_seed: as in `attention`.
        cu_seqlens: (S + 1,) int32: the boundaries of queries and keys.
        segment_ids: as in `attention`.
        causal: as in `attention`.
        window: as in `attention`.
        scale: as in `attention`.
        softcap: as in `attention`.
        dropout_p: as in `attention`.
        return_lse: as in `attention`.
        backward: as in `attention`.

    Returns:
        out (B, T, H, D); with `return_lse`, (out, lse).

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> qkv = torch.randn(2, 100, 3, 8, 64, requires_grad=True)
        >>> retrograd.attention_qkvpacked(qkv, causal=True).sum().backward()
        >>> qkv.grad.shape
        torch.Size([2, 100, 3, 8, 64])
    """
    arrays: dict[str, Any] = {
        "qkv": qkv,
        "bias": bias,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "dropout_seed": as_array(Packed.op, "dropout_seed", dropout_seed, "int32", qkv),
        "cu_seqlens": cu_seqlens,
        "segment_ids": segment_ids,
    }
    options: dict[str, Any] = {
        "causal": causal,
        "window": as_tuple(window),
        "scale": scale,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "return_lse": return_lse,
        "backward": backward,
    }
    if torch.compiler.is_compiling():  # no error of an operator reaches a function that is traced
        _check(arrays, options)
        return _called(arrays, options)
    try:
        return _called(arrays, options)
    except Exception:
        _check(arrays, options)  # raises an error that names this function and its arguments
        raise


def _called(arrays: dict[str, Any], options: dict[str, Any]) -> Tensor | tuple[Tensor, Tensor]:
    others = [name for name in OP.arguments if name not in STACK.arguments]
    given = {name: arrays["cu_seqlens" if name in OP.indices else name] for name in others}
    out, lse = _attention(arrays["qkv"], given, options)
    return (out, lse) if options["return_lse"] else out  # type: ignore[return-value]
