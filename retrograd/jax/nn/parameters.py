"""The parameters of a model, a flat dict from the names in PyTorch's state_dict to arrays, and checks of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value
from retrograd.core.jax.context import Context
from retrograd.models.config import MambaConfig
from retrograd.models.shapes import Shape, mixer_shapes

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


def check_layer(where: str, params: Any, config: Any, kind: type[Any], u: Any, axes: tuple[str, ...]) -> None:
    """Raise for a config of another kind, u of another form than (*axes, d_model), and parameters of other shapes."""
    if not isinstance(config, kind):
        raise bad_type(where, "config", config, f"{article(kind)}, after params")
    check_features(where, "u", u, columns(params, "in_proj.weight"), axes)
    config.check(u.shape[-1])
    check(where, params, mixer_shapes(config, u.shape[-1]))


def check_features(where: str, argument: str, u: Any, channels: int | None, axes: tuple[str, ...]) -> None:
    """Raise for anything but an array (*axes, d_model) of so many channels, or of any if their number is not known.

    An axis "..." stands for any number of axes.
    """
    check_array(where, argument, u)
    fits = u.ndim >= 1 if axes == ("...",) else u.ndim == len(axes) + 1
    if not fits or u.shape[-1] != (channels or u.shape[-1]):
        width = "d_model" if channels is None else f"d_model={channels}"
        raise bad_shape(where, argument, u.shape, f"({', '.join((*axes, width))})")


def check_tokens(where: str, argument: str, tokens: Any, axes: tuple[str, ...]) -> None:
    """Raise for anything but an array of integers with these axes."""
    check_array(where, argument, tokens)
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise bad_dtype(where, argument, str(tokens.dtype), ("int32", "another integer"))
    if tokens.ndim != len(axes):
        raise bad_shape(where, argument, tokens.shape, f"({', '.join(axes)}{',' * (len(axes) == 1)})")


def columns(params: Any, name: str) -> int | None:
    """The columns of a weight, which are the channels of what it takes; None if there is no such matrix."""
    shape = np.shape(params[name]) if isinstance(params, Mapping) and name in params else ()
    return shape[1] if len(shape) == 2 else None


def check_state(where: str, state: Any, kind: type) -> None:
    """Raise TypeError for anything but a state of this kind, of arrays."""
    check_kind(where, "state", state, kind)
    for name, array in state._asdict().items():
        check_array(where, f"state.{name}", array)


def check_kind(where: str, argument: str, given: Any, kind: type) -> None:
    """Raise TypeError for anything but an instance of a class."""
    if not isinstance(given, kind):
        raise bad_type(where, argument, given, article(kind))


def article(kind: type) -> str:
    """The name of a class after its article."""
    return f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"


def check_context(where: str, context: Any, state: Any) -> None:
    """Raise for what is no context, and for a state beside one."""
    if context is None:
        return
    if not isinstance(context, Context):
        raise bad_type(where, "context", context, "a retrograd.jax.distributed.ContextParallel")
    if state is not None:
        raise bad_value(where, "state", "given", "None beside a context")
