"""`jax.nn.dot_product_attention`'s call on `attention`."""

from __future__ import annotations

import operator
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from retrograd.core.errors import as_tuple, bad_value
from retrograd.core.jax.arguments import readable
from retrograd.core.jax.checks import checker
from retrograd.core.jax.op import bind
from retrograd.core.spec import accumulator
from retrograd.core.xp import aligned

from .dot_product import DotProduct
from .op import OP

_attention = bind(OP)
_check = checker(DotProduct, rows=True)


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """`jax.nn.dot_product_attention` with the same arguments, computed by `retrograd.jax.attention`.

    What differs: a query that sees no key has zeros as its result, where jax returns the mean of all values, and -inf
    as its residual; the residual is in float32 and has a gradient; a bias of integers is refused. As in jax, and unlike
    in `attention`, query i stands at key i: causal masks and windows begin at the first query and key.

    Args:
        query: (B, T, N, H) or (T, N, H), float32, bfloat16 or float16; float64 runs on the portable path.
        key: (B, S, K, H) or (S, K, H) in the dtype of query; K divides N.
        value: like key, also with another H.
        bias: (B, N, T, S), each axis also of size 1, or without the first axes; of any float, added to the scaled
            products in float32.
        mask: of bool, with a shape as bias: True where a query sees a key.
        scale: factor of the products; 1 / sqrt(H) by default. Kernels are compiled for its value. One that `jax.jit`
            traces is multiplied into query, in float32; half-precision arrays are then computed in float32, too.
        is_causal: whether a query sees no later key.
        query_seq_lengths: (B,) int32: queries from there on have zeros as their results.
        key_value_seq_lengths: (B,) int32: keys from there on are not seen. Lengths below 0 are refused on a CPU outside
            of `jax.jit`, and mean 0 elsewhere.
        local_window_size: (left, right), how many keys a query sees before and after its own position; an int for both.
        implementation: None, since there is one.
        return_residual: also return the logarithm of the sum of exponentials, (B, T, N) or (T, N).

    Returns:
        The result, of the shape of query with the H of value; with `return_residual`, also the residual.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import dot_product_attention
        >>> q, k = jnp.ones((2, 10, 4, 16)), jnp.ones((2, 10, 2, 16))
        >>> dot_product_attention(q, k, k, is_causal=True).shape
        (2, 10, 4, 16)
    """
    number: Any = scale if _is_number(scale) else None
    traced = number if isinstance(number, jax.core.Tracer) else None
    given = {
        "query": _with_all_axes(query),
        "key": _with_all_axes(key),
        "value": _with_all_axes(value),
        "bias": _array(bias),
        "mask": _array(mask),
        "query_seq_lengths": query_seq_lengths,
        "key_value_seq_lengths": key_value_seq_lengths,
    }
    options = {
        "scale": scale if number is None else None if traced is not None else float(number),
        "is_causal": is_causal,
        "local_window_size": _sides(local_window_size),
        "implementation": implementation,
        "return_residual": return_residual,
    }
    arrays, _ = _check(given, options)
    for name in ("query_seq_lengths", "key_value_seq_lengths"):
        _check_lengths(name, arrays[name])
    out, lse = _computed(tuple(arrays.values()), traced, options["scale"], is_causal, options["local_window_size"])
    of_queries = jnp.shape(query)[:-1]
    out = out.reshape(*of_queries, out.shape[-1])
    return (out, lse.reshape(of_queries)) if return_residual else out


@partial(jax.jit, static_argnums=(2, 3, 4))  # in one program, so that `jax.debug_infs` does not see -inf of masks
def _computed(
    arrays: tuple[Any, ...], traced: Any, scale: float | None, causal: bool, window: tuple[int, int] | None
) -> tuple[Array, Array]:
    """The result (B, T, N, H) and the residual (B, T, N), from checked arrays; `traced` is a scale, if it is traced."""
    q, k, v, bias, mask, steps_of_rows, keys_of_rows = arrays
    dtype, steps, keys = q.dtype, q.shape[1], k.shape[1]
    if traced is not None:
        q, k, v = (array.astype(accumulator(str(dtype))) for array in (q, k, v))
        q, scale = q * traced.astype(q.dtype), 1.0
    masks = [] if mask is None else [aligned(mask, q)]
    if keys_of_rows is not None:
        masks.append(_before(keys_of_rows, keys)[:, None, None])
    if steps != keys and (causal or window):  # `attention` aligns the last query with the last key
        masks.append(_around(steps, keys, causal, window)[None, None])
        causal, window = False, None
    added = _added(bias, masks, q)
    options = {"causal": causal, "window": window, "scale": scale, "return_lse": True}
    out, lse = _attention(*OP.complete({"q": q, "k": k, "v": v, "bias": added, **options}))
    lse = jnp.moveaxis(lse, 1, 2)
    if steps_of_rows is not None:
        real = _before(steps_of_rows, steps)[:, :, None]
        out, lse = jnp.where(real[..., None], out, 0), jnp.where(real, lse, -jnp.inf)
    return out.astype(dtype), lse


def _with_all_axes(array: Any) -> Any:
    """An array with first axes of size 1, as jax adds them; anything else unchanged, for the declaration to refuse."""
    return array[(None,) * (4 - array.ndim)] if isinstance(array, jax.Array | np.ndarray) else array


def _array(value: Any) -> Any:
    """A scalar as an array; anything else unchanged, for the declaration to take or to refuse."""
    return jnp.asarray(value) if isinstance(value, bool | float | np.bool_ | np.number) else value


def _is_number(value: Any) -> bool:
    """Whether a value is a real number of numpy or jax, which may be traced."""
    if not isinstance(value, jax.Array | np.ndarray | np.number) or value.ndim:
        return False
    return jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)


def _sides(window: Any) -> Any:
    """A window as a tuple of ints; what is none unchanged, for the declaration to refuse."""
    window = as_tuple(window)
    sides = tuple(map(_int, window)) if isinstance(window, tuple) else (_int(window),) * 2
    return sides if all(isinstance(side, int) for side in sides) else window


def _int(value: Any) -> Any:
    """An integer of numpy or jax as one of Python; anything else, and a bool, unchanged."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _check_lengths(name: str, lengths: Array | None) -> None:
    """Raise for lengths below 0, where they are readable."""
    if lengths is None or not readable(lengths):
        return
    for place, length in enumerate(np.asarray(lengths).tolist()):
        if length < 0:
            raise bad_value(DotProduct.op, f"{name}[{place}]", length, "a length of at least 0")


def _before(lengths: Array, steps: int) -> Array:
    """Whether each step is before the end of its row, (batch, steps)."""
    return jnp.arange(steps, dtype=lengths.dtype)[None] < lengths[:, None]


def _around(steps: int, keys: int, causal: bool, window: tuple[int, int] | None) -> Array:
    """Whether each query sees each key in its window, where query i stands at key i, (steps, keys)."""
    offset = jnp.arange(keys)[None] - jnp.arange(steps)[:, None]
    left, right = window or (steps + keys, steps + keys)
    return (offset <= (0 if causal else right)) & (offset >= -left)


def _added(bias: Array | None, masks: list[Array], like: Array) -> Array | None:
    """What is added to the products: a bias, -inf where a mask is False; all of them have four axes."""
    compute = accumulator(str(like.dtype))
    if bias is not None:
        bias = aligned(bias if bias.dtype == like.dtype else bias.astype(compute), like)
    if not masks:
        return bias
    return jnp.where(reduce(operator.and_, masks), jnp.zeros((), compute) if bias is None else bias, -jnp.inf)
