"""Steps of generation, for the tests of `causal_conv1d_update_` and of its kernel in the interpreter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from retrograd import causal_conv1d_update, causal_conv1d_update_
from retrograd.testing.compare import assert_same_bits


def in_place(
    device: str,
    seed: int,
    width: int,
    dtype: torch.dtype,
    *,
    rows: int = 3,
    channels: int = 133,
    weight_dtype: torch.dtype = torch.float32,
    bias: bool = True,
    activation: Any = "silu",
) -> bool:
    """Assert that steps that may overwrite the state have the bits of others; whether they have overwritten it.

    Their inputs are columns of wider rows, some of them -0 and NaN.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    weight = drawn(channels, width, dtype=weight_dtype)
    more = {"bias": drawn(channels, dtype=weight_dtype) if bias else None, "activation": activation}
    state = drawn(rows, channels, width - 1)
    state[:, ::5] = -0.0
    mine = given = state.clone()
    for step in range(width + 1):
        x = drawn(rows, 2 * channels + 3)[:, 3 : channels + 3]
        x[:1, step % channels] = torch.nan
        x[:, ::7] = -0.0
        expected, state = causal_conv1d_update(x, state, weight, **more)
        y, mine = causal_conv1d_update_(x, mine, weight, **more)
        assert_same_bits({"y": y, "state": mine}, {"y": expected, "state": state}, f"step {step}")
    return mine is given
