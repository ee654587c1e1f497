"""What modules say of inputs that are not theirs, before anything runs."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor

from retrograd.core.errors import bad_dtype, bad_shape, bad_type

INTEGERS = (torch.int64, torch.int32)


def check_features(module: str, u: Tensor, axes: tuple[str, ...], channels: int) -> None:
    """Raise unless u is a tensor (*axes, d_model)."""
    if not isinstance(u, Tensor):
        raise bad_type(module, "u", u, "a torch.Tensor")
    if u.ndim != len(axes) + 1 or u.shape[-1] != channels:
        raise bad_shape(module, "u", tuple(u.shape), f"({', '.join(axes)}, d_model={channels})")


def check_tokens(module: str, tokens: Tensor, axes: tuple[str, ...], argument: str = "tokens") -> None:
    """Raise unless tokens are a tensor of integers of these axes."""
    if not isinstance(tokens, Tensor):
        raise bad_type(module, argument, tokens, "a torch.Tensor")
    if tokens.dtype not in INTEGERS:
        raise bad_dtype(module, argument, str(tokens.dtype), [str(dtype) for dtype in INTEGERS])
    if tokens.ndim != len(axes):
        raise bad_shape(module, argument, tuple(tokens.shape), f"({', '.join(axes)})")


def check_state(module: str, state: Any, layers: int) -> None:
    """Raise unless there is a state for each layer."""
    if not isinstance(state, Sized) or len(state) != layers:
        raise bad_type(module, "state", state, f"a sequence of {layers} states, one for each layer")
