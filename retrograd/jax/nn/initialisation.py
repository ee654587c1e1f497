"""Parameters drawn at random."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from retrograd.models.config import MambaConfig
from retrograd.models.layers import GatedDeltaNetConfig, Mamba2Config, MixerConfig
from retrograd.models.shapes import EMBEDDING_STD, Shape, model_shapes

from .parameters import check_config


def init(key: Array, config: MambaConfig) -> dict[str, Array]:
    """Parameters drawn from the distributions of `retrograd.nn.LanguageModel`, float32 whatever `jax_enable_x64` is.

    Args:
        key: from `jax.random.key`.
        config: sizes.

    Returns:
        Arrays with the names and shapes of PyTorch's state_dict, without `lm_head.weight` if embeddings are tied: one
        array then has the whole gradient.

    Raises:
        TypeError: for a config that is not a `MambaConfig`.

    Example:
        >>> import jax
        >>> from retrograd.jax import nn
        >>> params = nn.init(jax.random.key(0), nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> params["backbone.layers.0.mixer.in_proj.weight"].shape
        (256, 64)
    """
    check_config("init", config)
    shapes = dict(model_shapes(config))
    keys = jax.random.split(key, len(shapes))
    return {
        name: _draw(key, ".".join(name.split(".")[-2:]), shape, _layer(name, config), config.additions)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _layer(name: str, config: MambaConfig) -> MixerConfig | None:
    """The configuration of the layer that a parameter belongs to."""
    _, part, *rest = name.split(".")
    return config.layer(int(rest[0])) if part == "layers" else None


@partial(jax.jit, static_argnums=(1, 2, 3, 4))  # so that the layers share compiled code
def _draw(key: Array, name: str, shape: Shape, layer: Any, additions: int) -> Array:
    def uniform(low: float, high: float) -> Array:
        return jax.random.uniform(key, shape, jnp.float32, low, high)

    def within(bound: float) -> Array:
        return uniform(-bound, bound)

    match name:
        case "embedding.weight":
            return EMBEDDING_STD * jax.random.normal(key, shape, jnp.float32)
        case "norm.weight" | "norm2.weight" | "norm_f.weight" | "q_norm.weight" | "k_norm.weight" | "mixer.D":
            return jnp.ones(shape, jnp.float32)
        case "in_proj.bias" | "out_proj.bias":
            return jnp.zeros(shape, jnp.float32)
        case "mixer.A_log" if isinstance(layer, Mamba2Config | GatedDeltaNetConfig):
            return jnp.log(uniform(*layer.A_init_range))
        case "mixer.A_log":
            return jnp.broadcast_to(jnp.log(jnp.arange(1, shape[1] + 1, dtype=jnp.float32))[None], shape)
        case "dt_proj.weight":
            bound = shape[1] ** -0.5 * layer.dt_scale
            return jnp.full(shape, bound, jnp.float32) if layer.dt_init == "constant" else within(bound)
        case "dt_proj.bias" | "mixer.dt_bias":
            delta = jnp.exp(uniform(math.log(layer.dt_min), math.log(layer.dt_max))).clip(min=layer.dt_init_floor)
            return delta + jnp.log(-jnp.expm1(-delta))  # the inverse of softplus
        case "out_proj.weight" | "fc2.weight":
            # Keeps the sum of what the layers add from growing with their number.
            return within((shape[1] * additions) ** -0.5)
        case "conv1d.bias":
            return within(layer.d_conv**-0.5)
        case "conv1d.weight" if getattr(layer, "conv_init", None) is not None:
            return within(layer.conv_init)
        case _:  # by PyTorch's default: the last axis is the fan-in
            return within(shape[-1] ** -0.5)
