"""The layers that mix along time, by the class of their configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax.typing import DTypeLike

from retrograd.models.layers import AttentionConfig, GatedDeltaNetConfig, Mamba1Config, Mamba2Config, MixerConfig

from .attention import AttentionState, attention_layer, attention_layer_state, attention_layer_step
from .gated_delta_net import (
    GatedDeltaNetState,
    gated_delta_net,
    gated_delta_net_state,
    gated_delta_net_step,
)
from .mamba import MambaState, mamba, mamba_state, mamba_step
from .mamba2 import Mamba2State, mamba2, mamba2_state, mamba2_step

LayerState = MambaState | Mamba2State | GatedDeltaNetState | AttentionState


class Mixer(NamedTuple):
    """The functions of such a layer: over a sequence and over a step. And the class of its state."""

    forward: Callable[..., Any]
    step: Callable[..., Any]
    state: type[LayerState]


MIXERS: Mapping[type[MixerConfig], Mixer] = {
    Mamba1Config: Mixer(mamba, mamba_step, MambaState),
    Mamba2Config: Mixer(mamba2, mamba2_step, Mamba2State),
    GatedDeltaNetConfig: Mixer(gated_delta_net, gated_delta_net_step, GatedDeltaNetState),
    AttentionConfig: Mixer(attention_layer, attention_layer_step, AttentionState),
}


def layer_state(config: MixerConfig, d_model: int, batch: int, dtype: DTypeLike, capacity: int | None) -> LayerState:
    """The state of a layer before the first step; attention needs a capacity."""
    match config:
        case Mamba1Config():
            return mamba_state(config, d_model, batch, dtype)
        case Mamba2Config():
            return mamba2_state(config, d_model, batch, dtype)
        case GatedDeltaNetConfig():
            return gated_delta_net_state(config, d_model, batch, dtype)
        case AttentionConfig():
            assert capacity is not None
            return attention_layer_state(config, d_model, batch, dtype, capacity=capacity)
