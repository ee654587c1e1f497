"""Mamba-1's layers of transformers on packed and padded rows, which their own code would run into one another."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.accelerate import force_accelerate_hooks

import retrograd
from retrograd.compat.checks import activation_of
from retrograd.compat.dtypes import beside, full
from retrograd.compat.recompute import recomputed_in_backward
from retrograd.compat.sequences import joined, runs_of
from retrograd.core.errors import bad_value
from retrograd.core.torch.autocast import no_autocast

from .classes import Replacement

CLASSES = ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer")


class Texts(NamedTuple):
    """What a model hands on in place of its attention_mask, where its layers get nothing else.

    Attributes:
        seq_idx: (batch, seqlen), the number of each step's text; negative at padding.
        attention_mask: what was given.
    """

    seq_idx: Tensor
    attention_mask: Tensor | None


class Mixer(Replacement):
    """A layer of Mamba-1 that keeps the texts of a row apart; on other rows, its original."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer's results, 0 at padding."""
        texts = kwargs.get("attention_mask")
        seq_idx = kwargs.get("seq_idx")
        if isinstance(texts, Texts):
            seq_idx, kwargs = texts.seq_idx, kwargs | {"attention_mask": texts.attention_mask}
        cached = any(kwargs.get(name) is not None for name in ("cache", "cache_params", "past_key_values"))
        if seq_idx is None and self.training and not cached and type(self.x_proj) is not nn.Linear:
            # transformers' fused function takes the weight of x_proj, without an adapter that stands in its place
            seq_idx = torch.zeros(hidden_states.shape[:2], dtype=torch.int32, device=hidden_states.device)
        if seq_idx is None or not seq_idx.numel():
            return super().forward(hidden_states, *args, **kwargs)
        if cached:
            raise bad_value("Mamba", "use_cache", True, "False for packed texts")
        return mix(self, hidden_states, seq_idx)


@force_accelerate_hooks(["conv1d", "dt_proj"])  # offloaded weights of modules that are not called
def mix(layer: Any, hidden_states: Tensor, seq_idx: Tensor) -> Tensor:
    """A layer of Mamba-1 of transformers: convolution, projections to the step sizes, B and C, scan, gate, projection.

    Args:
        layer: with transformers' names of parameters; norms of the step sizes, B and C where it has some.
        hidden_states: (batch, seqlen, channels).
        seq_idx: (batch, seqlen), the number of each step's text; negative at padding.

    Returns:
        (batch, seqlen, channels), 0 at padding but for the last projection's bias.
    """
    runs = runs_of("Mamba", seq_idx)
    assert runs is not None
    x, z = layer.in_proj(joined(hidden_states)).chunk(2, dim=-1)
    device, weight = x.device.type, layer.conv1d.weight.squeeze(1)

    def convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        with no_autocast(device):
            silu = activation_of("Mamba", layer.activation)
            return retrograd.causal_conv1d(x, weight, bias, cu_seqlens=runs.cu_seqlens, activation=silu)

    def step_sizes(low_rank: Tensor, weight: Tensor) -> Tensor:
        return F.linear(low_rank, weight.to(low_rank.dtype))

    with recomputed_in_backward([x, weight]) as again:
        x = again(convolution, x, beside(x, weight), beside(x, layer.conv1d.bias))
        sizes = [layer.time_step_rank, layer.ssm_state_size, layer.ssm_state_size]
        low_rank, B, C = layer.x_proj(x).split(sizes, dim=-1)
        if hasattr(layer, "dt_layernorm"):
            low_rank, B, C = layer.dt_layernorm(low_rank), layer.b_layernorm(B), layer.c_layernorm(C)
        dt = again(step_sizes, low_rank, layer.dt_proj.weight)
        with no_autocast(device):
            y = retrograd.selective_scan(
                x,
                beside(x, dt),
                -torch.exp(layer.A_log.to(full(x, layer.A_log).dtype)),
                beside(x, B),
                beside(x, C),
                D=full(x, layer.D),
                z=z,
                dt_bias=full(x, layer.dt_proj.bias),
                dt_softplus=True,
                cu_seqlens=runs.cu_seqlens,
            )
    y = runs.without_padding(y.view(*hidden_states.shape[:2], -1))
    return layer.out_proj(y.to(hidden_states.dtype))
