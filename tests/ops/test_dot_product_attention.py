"""`retrograd.jax.dot_product_attention` takes what jax's takes, and gives the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrograd.jax import dot_product_attention

SHAPES = (2, 9, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16)
KEYS = jax.random.split(jax.random.key(0), 6)
Q, K, V = (jax.random.normal(key, shape) for key, shape in zip(KEYS[:3], SHAPES, strict=True))
LONG = jax.random.normal(KEYS[3], (2, 13, 2, 16))
BIAS, MASK = jax.random.normal(KEYS[4], (1, 4, 9, 9)), jax.random.bernoulli(KEYS[5], 0.7, (2, 1, 9, 9))
MASK = MASK | jnp.eye(9, dtype=bool)[None, None]  # so that every query sees a key

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((Q, K, V), {}),
    "without batch": ((Q[0], K[0], V[0]), {"is_causal": True}),
    "scale": ((Q, K, V), {"scale": 0.5}),
    "causal": ((Q, K, V), {"is_causal": True}),
    "more keys": ((Q, LONG, LONG), {}),
    "causal, more keys": ((Q, LONG, LONG), {"is_causal": True}),
    "fewer keys": ((Q, K[:, :5], V[:, :5]), {"is_causal": True}),
    "window": ((Q, K, V), {"local_window_size": 2}),
    "window of two sides": ((Q, K, V), {"local_window_size": (3, 1)}),
    "window, more keys": ((Q, LONG, LONG), {"local_window_size": (3, 1)}),
    "bias": ((Q, K, V, BIAS), {}),
    "mask": ((Q, K, V), {"mask": MASK}),
    "bias, mask, causal": ((Q, K, V, BIAS, MASK), {"is_causal": True}),
    "lengths of keys": ((Q, K, V), {"key_value_seq_lengths": jnp.array([5, 9])}),
    "lengths": ((Q, K, V), {"query_seq_lengths": jnp.array([4, 9]), "key_value_seq_lengths": jnp.array([4, 7])}),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_jax(name: str) -> None:
    (q, k, v, *rest), options = CALLS[name]

    def loss(function: Any, *arrays: Any) -> Any:
        out = function(*arrays, *rest, **options)
        return (out * jnp.sin(jnp.arange(out.size)).reshape(out.shape)).sum(), out

    ours, theirs = (
        jax.jit(jax.value_and_grad(lambda *arrays, f=f: loss(f, *arrays), (0, 1, 2), has_aux=True))(q, k, v)
        for f in (dot_product_attention, jax.nn.dot_product_attention)
    )
    np.testing.assert_allclose(ours[0][1], theirs[0][1], atol=1e-5)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_residual_is_that_of_jax() -> None:
    _, ours = dot_product_attention(Q, K, V, is_causal=True, return_residual=True)
    _, theirs = jax.nn.dot_product_attention(Q, K, V, is_causal=True, return_residual=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_bias_has_a_gradient_and_a_masked_row_no_nan() -> None:
    mask = MASK.at[:, :, 3].set(False)
    out, dbias = jax.value_and_grad(lambda bias: jnp.sum(dot_product_attention(Q, K, V, bias, mask)))(BIAS)  # type: ignore[arg-type]
    assert jnp.isfinite(out)
    assert jnp.isfinite(dbias).all()
    assert not dbias[:, :, 3].any()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"mask": MASK.astype("int32")}, "dot_product_attention: mask has dtype int32, expected bool"),
        ({"bias": jnp.zeros((9, 9))}, r"dot_product_attention: bias has shape \(9, 9\), expected"),
        ({"key": K[0]}, r"dot_product_attention: key has shape \(9, 2, 16\), expected"),
        ({"query_seq_lengths": jnp.array([1])}, r"dot_product_attention: query_seq_lengths has shape \(1,\), expected"),
        ({"local_window_size": (-1, 2)}, r"dot_product_attention: local_window_size is \(-1, 2\), expected"),
        ({"implementation": "cudnn"}, "dot_product_attention: implementation is 'cudnn', expected None"),
    ],
    ids=lambda value: str(list(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_refused_by_name(changed: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        dot_product_attention(**{"query": Q, "key": K, "value": V, **changed})
