"""`causal_conv1d.causal_conv1d_varlen`: the last inputs of packed sequences, from which generation goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from retrograd.compat.checks import expect, expect_dims, expect_integer
from retrograd.compat.sequences import check_bounds
from retrograd.core.torch.arguments import check_tensors


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last inputs of each packed sequence, after zeros where it is shorter. Nothing waits for a GPU.

    Args:
        x: (total, dim), sequences one after another.
        cu_seqlens: (batch + 1,) int32: the start of each, and the end of the last.
        state_len: inputs of each.

    Returns:
        states (batch, dim, state_len), the newest at the end, in the dtype of x; differentiable.

    Raises:
        ValueError, TypeError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
        >>> x = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        >>> causal_conv1d_varlen_states(x, torch.tensor([0, 1, 4], dtype=torch.int32), state_len=2)[:, 0]
        tensor([[0., 1.],
                [3., 4.]])
    """
    me = "causal_conv1d_varlen_states"
    check_tensors(me, {"x": x, "cu_seqlens": cu_seqlens}, required=2)
    expect_dims(me, "x", x, "(total, dim)")
    expect(me, "x", x, x.shape, "(total, dim)")
    check_bounds(me, cu_seqlens, None)
    expect_integer(me, "state_len", state_len)
    bounds = cu_seqlens.long()
    places = bounds[1:, None] + torch.arange(-state_len, 0, device=x.device)
    before = places < bounds[:-1, None]
    rows = x.new_zeros(*places.shape, x.shape[1]) if not len(x) else x[places.clamp(0, len(x) - 1)]
    return rows.masked_fill(before[..., None], 0).transpose(1, 2)


causal_conv1d_varlen_states_ref = causal_conv1d_varlen_states
