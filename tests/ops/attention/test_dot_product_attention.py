"""`retrograd.jax.dot_product_attention` takes what jax's takes, and gives the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import retrograd.jax

dot_product_attention: Any = retrograd.jax.dot_product_attention  # without its types: many arguments here are wrong
B, T, S, N, K, H = 2, 9, 13, 4, 2, 16
# Arrays of NumPy, since JAX would compile a program for each of their slices while tests are collected.
RANDOM = np.random.default_rng(0)
Q, LONG, V, BIAS = (
    RANDOM.standard_normal(shape, "float32") for shape in ((B, T, N, H), (B, S, K, H), (B, T, K, H), (1, N, T, T))
)
KEY = LONG[:, :T]
MASK = (RANDOM.random((B, 1, T, T)) < 0.7) | np.eye(T, dtype=bool)  # so that every query sees a key
FEW, SOME = np.array([4, 7], np.int32), jnp.array([5, 40])  # lengths
Call = tuple[tuple[Any, ...], dict[str, Any]]


def ones(*shape: int) -> Any:
    return np.ones(shape, "float32")


def of_dtype(dtype: str) -> tuple[Any, ...]:
    return tuple(array.astype(dtype) for array in (Q, KEY, V))


CALLS: dict[str, Call] = {
    "plain": ((Q, KEY, V), {}),
    "bfloat16": (of_dtype("bfloat16"), {"is_causal": True}),
    "without batch": ((Q[0], KEY[0], V[0]), {"is_causal": True}),
    "scale": ((Q, KEY, V), {"scale": 0.5}),
    "causal": ((Q, KEY, V), {"is_causal": True}),
    "more keys": ((Q, LONG, LONG), {}),
    "causal, more keys": ((Q, LONG, LONG), {"is_causal": True}),
    "fewer keys": ((Q, KEY[:, :5], V[:, :5]), {"is_causal": True}),
    "window": ((Q, KEY, V), {"local_window_size": 2}),
    "window of two sides": ((Q, KEY, V), {"local_window_size": (3, 1)}),
    "window, more keys": ((Q, LONG, LONG), {"local_window_size": (3, 1)}),
    "bias": ((Q, KEY, V, BIAS), {}),
    "bias in bfloat16": ((Q, KEY, V, BIAS.astype("bfloat16")), {}),
    "bfloat16, bias in float32": ((*of_dtype("bfloat16"), BIAS), {}),
    "mask": ((Q, KEY, V, None, MASK), {}),
    "mask, bias in bfloat16, causal": ((Q, KEY, V, BIAS.astype("bfloat16"), MASK), {"is_causal": True}),
    "lengths of keys": ((Q, KEY, V), {"key_value_seq_lengths": SOME}),
    "lengths": ((Q, KEY, V), {"query_seq_lengths": SOME, "key_value_seq_lengths": FEW}),
    "everything": (
        (Q, LONG, LONG, BIAS[0, :, :, :1], np.arange(S) < 12),
        {"key_value_seq_lengths": SOME, "local_window_size": 6, "is_causal": True, "scale": -0.4},
    ),
}
# Other ways to say a call.
ALIKE: dict[str, tuple[Call, Call]] = {
    "arrays of numpy": (((Q, KEY, V, BIAS, MASK), {}), ((Q, KEY, V, BIAS, MASK), {})),
    "one of them without batch": (((Q[0], KEY[:1], V[:1]), {}), ((Q[0], KEY[0], V[0]), {})),
    "one query": (((Q[0, 0], KEY[0], V[0]), {}), ((Q[0, :1], KEY[0], V[0]), {})),
    "scale of jax": (((Q, KEY, V), {"scale": jnp.bfloat16(0.5)}), CALLS["scale"]),
    "scale of numpy": (((Q, KEY, V), {"scale": np.int64(2)}), ((Q, KEY, V), {"scale": 2.0})),
    "window in a list": (((Q, KEY, V), {"local_window_size": [3, 1]}), CALLS["window of two sides"]),
    "window of numpy": (
        ((Q, KEY, V), {"local_window_size": (np.int64(3), jnp.int32(1))}), CALLS["window of two sides"]),
    "bias of three axes": (((Q, KEY, V, BIAS[0]), {}), ((Q, KEY, V, BIAS), {})),
    "bias of two axes": (((Q, KEY, V, BIAS[0, 0]), {}), ((Q, KEY, V, BIAS[:, :1]), {})),
    "bias of keys": (((Q, KEY, V, BIAS[0, 0, 0]), {}), ((Q, KEY, V, BIAS[:, :1, :1]), {})),
    "bias for all pairs": (((Q, KEY, V, 0.5), {}), CALLS["plain"]),
    "mask of three axes": (((Q, KEY, V, None, MASK[1]), {}), ((Q, KEY, V, None, MASK[1:]), {})),
    "mask of two axes": (((Q, KEY, V, None, MASK[0, 0]), {}), ((Q, KEY, V, None, MASK[:1]), {})),
    "mask of keys": (((Q, KEY, V, None, MASK[0, 0, 0]), {}), ((Q, KEY, V, None, MASK[:1, :, :1]), {})),
    "mask for all pairs": (((Q, KEY, V, None, True), {}), CALLS["plain"]),
}  # fmt: skip


def of_jax(*arrays: Any, **options: Any) -> Any:
    """`jax.nn.dot_product_attention`, which leaves it to jax to convert dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(*arrays, **options)


def results_and_gradients(function: Callable[..., Any], call: Call) -> list[Any]:
    """The result, and the gradients of the arrays of floats."""
    arrays, options = call
    floats = [place for place, array in enumerate(arrays) if array is not None and jnp.result_type(array).kind != "b"]

    def loss(*numbers: Any) -> Any:
        given = [*arrays]
        for place, number in zip(floats, numbers, strict=True):
            given[place] = number
        out = function(*given, **options)
        return (out.astype("float32") * jnp.sin(jnp.arange(out.size, dtype="float32")).reshape(out.shape)).sum(), out

    derived = jax.jit(jax.value_and_grad(loss, range(len(floats)), has_aux=True))
    with jax.numpy_dtype_promotion("strict" if function is dot_product_attention else "standard"):
        (_, out), gradients = derived(*(jnp.asarray(arrays[place]) for place in floats))
    return [out, *gradients]


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_jax(name: str) -> None:
    arrays, options = CALLS[name]
    ours, theirs = (results_and_gradients(f, (arrays, options)) for f in (dot_product_attention, of_jax))
    half = arrays[0].dtype.itemsize == 2
    exact = results_and_gradients(of_jax, (tuple(a.astype("float32") for a in arrays), options)) if half else theirs
    for own, other, right in zip(ours, theirs, exact, strict=True):
        assert (own.shape, own.dtype) == (other.shape, other.dtype)
        own, other = (np.asarray(array, "float32") for array in (own, other))
        # In half precision as far from the result of float32 as jax's, and the rounding of the result.
        budget = 2 * np.abs(other - right).max() + 2**-8 * np.abs(right).max() if half else 2e-5
        np.testing.assert_allclose(own, right, rtol=0, atol=budget)


@pytest.mark.parametrize("name", ALIKE)
def test_what_jax_takes_for_the_same_call_is_the_same_here(name: str) -> None:
    (arrays, options), (others, how) = ALIKE[name]
    found = dot_product_attention(*arrays, **options)
    expected = dot_product_attention(*(None if array is None else jnp.asarray(array) for array in others), **how)
    assert (found.shape, found.dtype) == (arrays[0].shape, expected.dtype)
    assert jax.eval_shape(lambda: of_jax(*arrays, **options)) == jax.eval_shape(lambda: found)
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scale_that_is_traced_is_exact(dtype: str) -> None:
    """By a product in float32: one in bfloat16 would round the queries, which the residual shows."""

    def attended(scale: Any) -> Any:
        return dot_product_attention(*of_dtype(dtype), scale=scale, return_residual=True)

    (out, residual), (expected, fixed) = jax.jit(attended)(0.3), attended(0.3)
    np.testing.assert_allclose(residual, fixed, rtol=0, atol=2e-6)
    assert out.dtype == expected.dtype == dtype
    rounding = 2**-8 if dtype == "bfloat16" else 2e-6
    np.testing.assert_allclose(out.astype("float32"), expected.astype("float32"), rtol=rounding, atol=rounding)


def test_a_scale_that_is_traced_has_a_gradient() -> None:
    def of_scale(function: Callable[..., Any]) -> Any:
        return jax.grad(lambda scale: (function(Q, KEY, V, scale=scale) ** 2).sum())(0.3)

    np.testing.assert_allclose(of_scale(dot_product_attention), of_scale(of_jax), rtol=1e-5)


def test_the_residual_is_that_of_jax_and_has_a_gradient() -> None:
    _, ours = dot_product_attention(Q, KEY, V, is_causal=True, return_residual=True)
    _, theirs = of_jax(Q, KEY, V, is_causal=True, return_residual=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    _, alone = dot_product_attention(Q[0], KEY[0], V[0], is_causal=True, return_residual=True)
    np.testing.assert_allclose(alone, ours[0], atol=1e-6)
    dq = jax.grad(lambda q: dot_product_attention(q, KEY, V, return_residual=True)[1].sum())(0 * Q)
    mean = jnp.repeat(KEY, N // K, 2).mean(1, keepdims=True)  # the gradient at products that are all 0
    np.testing.assert_allclose(dq, jnp.broadcast_to(mean / H**0.5, Q.shape), atol=1e-6)


def test_a_bias_has_a_gradient_and_a_masked_row_no_nan() -> None:
    mask = MASK & (np.arange(T) != 3)[:, None]
    out, dbias = jax.value_and_grad(lambda bias: jnp.sum(dot_product_attention(Q, KEY, V, bias, mask)))(BIAS)
    assert jnp.isfinite(out)
    assert jnp.isfinite(dbias).all()
    assert not dbias[:, :, 3].any()


def test_mapped_over_batches_with_a_mask_for_all_of_them() -> None:
    q, k, v = (jnp.stack([array, 2 * array, -array]) for array in (Q, KEY, V))
    for last in (BIAS, None), (None, MASK[0, 0]):
        mapped = jax.vmap(dot_product_attention, (0, 0, 0, None, None))(q, k, v, *last)
        one_by_one = jnp.stack([dot_product_attention(*one, *last) for one in zip(q, k, v, strict=True)])
        np.testing.assert_allclose(mapped, one_by_one, atol=1e-5)


def test_masks_make_no_infinite_numbers_where_jax_looks_for_them() -> None:
    with jax.enable_x64(), jax.debug_infs(True), jax.debug_nans(True):
        q, k = (jnp.asarray(array[0], "float64") for array in (Q, LONG))
        given, how = (q, k, k, None, jnp.arange(S) < 7), {"key_value_seq_lengths": jnp.array([9], "int32")}
        ours, theirs = (f(*given, **how) for f in (dot_product_attention, of_jax))
    assert ours.dtype == "float64"
    np.testing.assert_allclose(ours, theirs, atol=1e-6)  # jax takes the exponentials of float64 in float32


def test_lengths_below_0_are_0_where_they_cannot_be_read() -> None:
    out = jax.jit(lambda n: dot_product_attention(Q, KEY, V, query_seq_lengths=n, key_value_seq_lengths=n))
    np.testing.assert_array_equal(out(jnp.array([-3, 5])), out(jnp.array([0, 5])))


NO_NUMBERS: tuple[Any, ...] = (
    "x",
    [1],
    True,
    1j,
    {},
    float("nan"),
    float("inf"),
    10**400,
    jnp.ones(1),
    jnp.bool_(1),
    np.array("x"),
)
NO_LENGTHS = ("x", 3, [4, 9], FEW[:1], FEW[:, None], FEW.astype("float32"), FEW > 4, FEW - 5, np.array("x"))
BAD: dict[str, tuple[Any, ...]] = {
    "query": (None, 1.0, "x", Q[None], Q[:, :, :3], Q.astype("int32"), Q.astype("bfloat16"), ones(B, T, N, 600)),
    "key": (None, [1.0], KEY[0], KEY[:1], KEY[..., :8], KEY.astype("bfloat16"), KEY > 0, ones(B, T, 3, H)),
    "value": (None, V[0], V[:, :5], V[:, :, :1], V.astype("float16"), V.astype("int32"), ones(B, T, K, 600)),
    "bias": ("x", [0.0], 1, 10**400, BIAS[None], BIAS[:, :3], BIAS[0, :2], MASK, BIAS.astype("complex64"),
        BIAS.astype("int32"), np.zeros((T, T), [("x", "f4")])),
    "mask": ("x", 0.5, MASK[None], MASK[..., :5], MASK[0, :, :4], MASK.astype("int32"), MASK.astype("float32"), BIAS),
    "scale": NO_NUMBERS,
    "is_causal": ("x", 1, 0, None, np.True_, jnp.bool_(1), []),
    "query_seq_lengths": NO_LENGTHS,
    "key_value_seq_lengths": NO_LENGTHS,
    "local_window_size": (
        1.5, "ab", True, {}, float("nan"), -1, 2**31, 10**5000, jnp.arange(2), (), (1,), (1, 2, 3), (1.5, 0),
        (float("nan"), 0), (True, 1), (None, 1), (-1, 2), (1, 2**31), (10**5000, 0), [1.0, 2], ("a", "b")),
    "implementation": ("xla", "cudnn", 3, True),
    "return_residual": (1, 0, None, "x", np.False_),
}  # fmt: skip


@pytest.mark.parametrize(
    "beside", [{}, {"mask": MASK}, {"key_value_seq_lengths": FEW}], ids=lambda beside: str([*beside])
)
@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_refused_by_name(name: str, beside: dict[str, Any]) -> None:
    for value in BAD[name]:
        with pytest.raises((ValueError, TypeError)) as raised:
            dot_product_attention(**{"query": Q, "key": KEY, "value": V, **beside, name: value})
        # The size of an axis is that of the first array that has it: a query of another batch makes the key wrong.
        named = rf"(?:{name}|key|value|mask|key_value_seq_lengths)" if name == "query" else name
        assert re.match(rf"dot_product_attention: {named}(\[\d\]|\.shape\[2\])? (is|has) ", str(raised.value)), value


def test_a_scale_that_is_traced_is_one_number() -> None:
    for scale in (jnp.ones(2), jnp.bool_(1), jnp.complex64(1)):
        with pytest.raises(TypeError, match=r"^dot_product_attention: scale is .*, expected a float or None"):
            jax.jit(lambda scale: dot_product_attention(Q, KEY, V, scale=scale))(scale)


def test_an_array_that_is_not_divided_by_rows_is_refused_by_name() -> None:
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:1])
    rows, heads = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), (None, None, "data")))
    assert dot_product_attention(*jax.device_put((Q, KEY, V), rows), mask=jax.device_put(MASK, rows)).shape == Q.shape
    for name, array in {"query": Q, "bias": BIAS}.items():
        with pytest.raises(ValueError, match=f"^dot_product_attention: {name} is sharded as .*, expected its first"):
            dot_product_attention(**{"query": Q, "key": KEY, "value": V, name: jax.device_put(array, heads)})
