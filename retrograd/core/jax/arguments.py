"""Checks and converts the arguments and options of a call from JAX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import bad_shape, bad_type, bad_value, check_nondecreasing, check_number
from ..spec import CallSpec, Param, known

MOST = 2**31 - 1


def arrays_of(op: str, arguments: Mapping[str, Any], required: int = 1) -> dict[str, Any]:
    """The arguments as JAX arrays, None where one is absent; the first `required` arguments must be present.

    numpy arrays are converted by `jax.numpy.asarray`: float64 becomes float32, unless `jax_enable_x64` is set.
    """
    arrays: dict[str, Any] = {}
    for place, (name, value) in enumerate(arguments.items()):
        if isinstance(value, jax.Array) or (value is None and place >= required):
            arrays[name] = value
        elif isinstance(value, np.ndarray):
            arrays[name] = _converted(op, name, value)
        else:
            raise bad_type(op, name, value, "a jax.Array")
    return arrays


def _converted(op: str, argument: str, array: np.ndarray) -> jax.Array:
    try:
        return jnp.asarray(array)
    except TypeError:  # texts, objects, records, dates
        raise bad_type(op, argument, array, "a jax.Array") from None


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


def in_int32(bounds: Any) -> Any:
    """Boundaries in int64, which a sum may have, as int32; anything else unchanged, for a later check to report."""
    if not isinstance(bounds, jax.Array | np.ndarray) or bounds.dtype != np.int64:
        return bounds
    return bounds.clip(-1, MOST).astype(np.int32)  # what is out of range stays so


def labels_in_int32(labels: Any) -> Any:
    """Labels in int64 as int32 that tell the same neighbours apart; anything else unchanged."""
    if not isinstance(labels, jax.Array | np.ndarray) or labels.dtype != np.int64:
        return labels
    if labels.ndim == 0:
        return labels.astype(np.int32)
    begins = jnp.diff(labels, axis=-1, prepend=labels[..., :1]) != 0
    return jnp.where(labels < 0, -1, begins.cumsum(-1)).astype(np.int32)


def params_of(arrays: Mapping[str, Any]) -> dict[str, Param | None]:
    """Shape and dtype of each array, None where it is absent."""
    return {
        name: None if array is None else Param(tuple(array.shape), str(array.dtype)) for name, array in arrays.items()
    }


@contextmanager
def with_open_sizes(op: str, arrays: Mapping[str, Any]) -> Iterator[None]:
    """Raise ValueError where a check asks for a size of these arrays that `jax.export` leaves open."""
    try:
        yield
    except jax.errors.InconclusiveDimensionOperation as error:
        text = str(error).partition("\n")[0]
        for name, array in arrays.items():
            for size in () if array is None else array.shape:
                if not known(size) and re.search(rf"\b{re.escape(str(size))}\b", text):
                    raise bad_shape(op, name, array.shape, f"a number in place of {size}") from error
        raise


def check_numbers(spec: CallSpec, arrays: Mapping[str, Any]) -> None:
    """Raise for numbers that decrease or exceed their limit, where they are readable."""
    for name, limit in spec.limited().items():
        if readable(arrays[name]):
            check_nondecreasing(spec.op, name, np.asarray(arrays[name]).tolist(), limit)


def readable(array: Any) -> bool:
    """Whether an array's values can be read without waiting: on a CPU, untraced."""
    if isinstance(array, jax.core.Tracer):
        return False
    return isinstance(array, np.ndarray) or all(device.platform == "cpu" for device in array.devices())
