"""The definition of causal_conv1d in plain PyTorch; all implementations are compared with it in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import silu


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `retrograd.causal_conv1d`. Computes in the dtype of its inputs; differentiated by autograd."""
    if cu_seqlens is None:
        y, final = one(x, weight, bias, activation, initial_state)
    else:
        parts = [one(part, weight, bias, activation, s) for part, s in sequences(x, initial_state, cu_seqlens)]
        before, after = x[:, : cu_seqlens[0]], x[:, cu_seqlens[-1] :]
        y = torch.cat([torch.zeros_like(before), *(y for y, _ in parts), torch.zeros_like(after)], 1)
        state_shape = (0, x.shape[2], weight.shape[1] - 1)
        final = torch.cat([x.new_zeros(state_shape), *(final for _, final in parts)])
    return (y, final) if return_final_state else y


def sequences(x: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Each packed sequence with its initial state."""
    bounds = cu_seqlens.tolist()
    for i, (start, stop) in enumerate(pairwise(bounds)):
        yield x[:, start:stop], None if initial_state is None else initial_state[i : i + 1]


def one(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y and the final state of a batch of sequences of one length."""
    B, T, D = x.shape
    W = weight.shape[1]
    state = x.new_zeros(B, D, W - 1) if initial_state is None else initial_state
    padded = torch.cat([state.transpose(1, 2), x], 1)
    pre = padded[:, :T] * weight[:, 0]
    for k in range(1, W):
        pre = pre + padded[:, k : k + T] * weight[:, k]
    if bias is not None:
        pre = pre + bias
    y = silu(pre) if activation == "silu" else pre
    return y.to(x.dtype), padded[:, T:].transpose(1, 2)
