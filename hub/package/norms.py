"""RMS norms without a state: `weight`, `variance_epsilon` and the like are attributes of the layer that is replaced."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .ops.torch_functions import rms_norm


class RMSNorm(nn.Module):
    """Llama's norm, which has the dtype that input and weight have together."""

    can_torch_compile: bool = True
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The norm of the last dimension."""
        weight = _beside(hidden_states, self.weight)
        dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
        return rms_norm(hidden_states, weight, eps=self.variance_epsilon, out_dtype=dtype)


class RMSNormZeroCentered(nn.Module):
    """Gemma's norm, to whose weight 1 is added; it has the dtype of the input."""

    can_torch_compile: bool = True
    weight: Tensor
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """The norm of the last dimension."""
        return rms_norm(x, _beside(x, self.weight), eps=self.eps, weight_offset=1.0)


class RMSNormGated(nn.Module):
    """A norm whose result is multiplied with the activation of a gate; it has the dtype of the input."""

    can_torch_compile: bool = True
    weight: Tensor
    variance_epsilon: float
    activation: Literal["silu", "sigmoid"]

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """The norm of the last dimension, times the gate."""
        return rms_norm(
            hidden_states,
            _beside(hidden_states, self.weight),
            gate=gate,
            eps=self.variance_epsilon,
            norm_before_gate=True,
            gate_activation=self.activation,
        )


def _beside(x: Tensor, weight: Tensor) -> Tensor:
    """A weight as `rms_norm` takes it: in float32, or in the dtype of x."""
    return weight if weight.dtype in (x.dtype, torch.float32) else weight.to(x.dtype)
