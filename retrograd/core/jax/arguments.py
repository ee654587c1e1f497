"""Checks and converts the arguments and options of a call from JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import bad_type, bad_value, check_nondecreasing, check_number
from ..op import Op
from ..spec import CallSpec, Param, required_count


def arrays_of(op: str, arguments: Mapping[str, Any], required: int = 1) -> dict[str, Any]:
    """The arguments as JAX arrays, None where one is absent; the first `required` arguments must be present.

    numpy arrays are converted by `jax.numpy.asarray`: float64 becomes float32, unless `jax_enable_x64` is set.
    """
    arrays: dict[str, Any] = {}
    for place, (name, value) in enumerate(arguments.items()):
        if isinstance(value, jax.Array) or (value is None and place >= required):
            arrays[name] = value
        elif isinstance(value, np.ndarray) and value.dtype.kind not in "OSUMm":
            arrays[name] = jnp.asarray(value)
        else:
            raise bad_type(op, name, value, "a jax.Array")
    return arrays


def jax_dtype(op: str, option: str, dtype: Any) -> str | None:
    """The dtype's name for an option that is a dtype or None; raises ValueError for anything else."""
    try:
        return None if dtype is None else str(jnp.dtype(dtype))
    except TypeError:
        raise bad_value(op, option, dtype, "a dtype of jax.numpy") from None


def as_array(op: str, argument: str, value: Any, dtype: str, like: Any) -> Any:
    """A run-time number as a 0-dimensional array; arrays and None are returned unchanged.

    Raises:
        TypeError, ValueError: for a value that is not a number of the dtype.
    """
    if value is None or isinstance(value, jax.Array | np.ndarray):
        return value
    check_number(op, argument, value, dtype)
    return jnp.asarray(value, dtype)


def checker(
    call: type[CallSpec],
) -> Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]:
    """The function from the arguments and options of a step of generation to its arrays of jax and options.

    It raises ValueError or TypeError for what does not fit together.
    """
    required = required_count(call)

    def checked(given: dict[str, Any], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = arrays_of(call.op, given, required)
        call.of(params_of(arrays), options)
        return arrays, options

    return checked


def params_of(arrays: Mapping[str, Any]) -> dict[str, Param | None]:
    """Shape and dtype of each array, None where it is absent."""
    return {
        name: None if array is None else Param(tuple(array.shape), str(array.dtype)) for name, array in arrays.items()
    }


def check_numbers(op: Op, spec: Any, arguments: Mapping[str, Any]) -> None:
    """Raise for `Op.indices` that decrease or exceed their limit, if readable without waiting: on a CPU, untraced."""
    for name, limit in op.indices.items():
        if (numbers := arguments[name]) is not None and _readable(numbers):
            check_nondecreasing(op.name, name, np.asarray(numbers).tolist(), limit(spec))


def _readable(array: Any) -> bool:
    if isinstance(array, jax.core.Tracer):
        return False
    return isinstance(array, np.ndarray) or all(device.platform == "cpu" for device in array.devices())
