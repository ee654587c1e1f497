"""Initial values that layers share."""

from __future__ import annotations

import math

import torch
from torch import nn

from retrograd.models.layers import RecurrentConfig


@torch.no_grad()
def draw_steps(bias: nn.Parameter, config: RecurrentConfig) -> None:
    """Draw the bias of dt so that its softplus is log-uniform from dt_min to dt_max."""
    delta = torch.empty(bias.shape, device=bias.device, dtype=torch.float32)
    delta = delta.uniform_(math.log(config.dt_min), math.log(config.dt_max)).exp().clamp(min=config.dt_init_floor)
    bias.copy_(delta + torch.log(-torch.expm1(-delta)))  # the inverse of softplus


def zero_biases(*projections: nn.Linear) -> None:
    """Set the biases that there are to zero."""
    for projection in projections:
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
