"""The parameters of a model: a flat dict from the names in PyTorch's state_dict to arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from retrograd.core.errors import bad_dtype, bad_shape, bad_type
from retrograd.models.config import MambaConfig
from retrograd.models.shapes import EMBEDDING_STD, Shape, model_shapes

Params = Mapping[str, Array]
Shapes = Mapping[str, Shape]


def under(params: Params, prefix: str) -> Params:
    """The parameters of a part of the model, without its prefix in their names."""
    return {name.removeprefix(prefix): array for name, array in params.items() if name.startswith(prefix)}


def check_config(where: str, config: Any) -> None:
    """Raise TypeError for anything but a `MambaConfig`."""
    if not isinstance(config, MambaConfig):
        raise bad_type(where, "config", config, "a MambaConfig, after params")


def check_array(where: str, argument: str, array: Any) -> None:
    """Raise TypeError for anything but an array."""
    if not isinstance(array, Array | np.ndarray):
        raise bad_type(where, argument, array, "a jax.Array")


def check(where: str, params: Any, shapes: Shapes) -> None:
    """Raise ValueError or TypeError for parameters of other names, shapes or dtypes."""
    if not isinstance(params, Mapping):
        raise bad_type(where, "params", params, "a dict from names to arrays")
    for name in sorted(shapes.keys() - params.keys()):
        raise ValueError(f"{where}: params[{name!r}] is missing, expected an array of shape {shapes[name]}")
    for name, array in params.items():
        argument = f"params[{name!r}]"
        if name not in shapes:
            raise ValueError(f"{where}: {argument} is not a parameter of this config")
        check_array(where, argument, array)
        if array.shape != shapes[name]:
            raise bad_shape(where, argument, array.shape, f"{shapes[name]}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise bad_dtype(where, argument, str(array.dtype), ("float32", "bfloat16", "float16"))


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
        name: _draw(key, ".".join(name.split(".")[-2:]), shape, config)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


@partial(jax.jit, static_argnums=(1, 2, 3))  # so that the layers share compiled code
def _draw(key: Array, name: str, shape: tuple[int, ...], config: MambaConfig) -> Array:
    def uniform(bound: float) -> Array:
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)

    match name:
        case "embedding.weight":
            return EMBEDDING_STD * jax.random.normal(key, shape, jnp.float32)
        case "norm.weight" | "norm_f.weight" | "mixer.D":
            return jnp.ones(shape, jnp.float32)
        case "in_proj.bias" | "out_proj.bias":
            return jnp.zeros(shape, jnp.float32)
        case "mixer.A_log":
            return jnp.tile(jnp.log(jnp.arange(1, config.d_state + 1, dtype=jnp.float32)), (config.d_inner, 1))
        case "dt_proj.weight":
            bound = config.rank**-0.5 * config.dt_scale
            return jnp.full(shape, bound, jnp.float32) if config.dt_init == "constant" else uniform(bound)
        case "dt_proj.bias":
            return _dt_bias(key, shape, config)
        case "out_proj.weight":
            # Keeps the sum of n_layer terms from growing with their number.
            return uniform((config.d_inner * config.n_layer) ** -0.5)
        case "conv1d.bias":
            return uniform(config.d_conv**-0.5)
        case _:  # in_proj, x_proj, conv1d and an untied head, by PyTorch's default: the last axis is the fan-in
            return uniform(shape[-1] ** -0.5)


def _dt_bias(key: Array, shape: tuple[int, ...], config: MambaConfig) -> Array:
    low, high = math.log(config.dt_min), math.log(config.dt_max)
    delta = jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high)).clip(min=config.dt_init_floor)
    return delta + jnp.log(-jnp.expm1(-delta))  # the inverse of softplus
