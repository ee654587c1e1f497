"""flax's modules of attention on `retrograd.jax`: the results and gradients of flax's own function."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax", reason="the package flax is not installed")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import linen, nnx  # noqa: E402
from flax.nnx.nn import attention as flax_attention  # noqa: E402

from retrograd.jax import linen as ours_linen  # noqa: E402
from retrograd.jax import nnx as ours_nnx  # noqa: E402

ours: Any = ours_nnx.attention_fn
in_linen: Any = ours_linen.attention_fn
flax_nnx: Any = flax_attention.dot_product_attention
B, T, H, D = 2, 13, 4, 16
# Sums of at most 16 and 13 float32 products in other orders, of numbers of about 1.
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def flax_s_promotions() -> Any:
    """flax adds axes and converts dtypes as numpy does."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def draw(seed: int, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(seed), shape)


def qkv(seed: int, steps: int = T, keys: int = T, batch: tuple[int, ...] = (B,)) -> list[Any]:
    shapes = [(*batch, steps, H, D), (*batch, keys, H, D), (*batch, keys, H, D)]
    return [draw(seed + i, *shape) for i, shape in enumerate(shapes)]


def both(arrays: list[Any], names: list[str], **options: Any) -> None:
    """Assert the results and all gradients of flax's function."""
    found = []
    for function in (ours, flax_nnx):

        def results(given: list[Any], function: Any = function) -> Any:
            q, k, v, *more = given
            return function(q, k, v, **dict(zip(names, more, strict=True)), **options)

        out, pull = jax.vjp(jax.jit(results), arrays)
        found.append([out, *pull(jnp.cos(3 * jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))[0]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.parametrize("batch", [(B,), (), (2, 3)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_results_and_gradients_with_any_batch(batch: tuple[int, ...], is_causal: bool, seed: int) -> None:
    both(qkv(seed, batch=batch), [], is_causal=is_causal)


@pytest.mark.parametrize("keys", [7, 13, 20])
def test_a_causal_query_stands_at_the_key_of_its_number(keys: int, seed: int) -> None:
    both(qkv(seed, keys=keys), [], is_causal=True)


@pytest.mark.parametrize("shape", [(B, H, T, T), (1, 1, T, T), (B, 1, 1, T), (H, T, T), (T, T)], ids=str)
def test_a_bias_is_added_and_has_its_gradient(shape: tuple[int, ...], seed: int) -> None:
    both([*qkv(seed), draw(seed + 3, *shape)], ["bias"])


def test_a_mask_hides_keys_and_may_have_any_dtype(seed: int) -> None:
    tokens = jnp.ones((B, T)).at[0, 9:].set(0)
    mask: Any = linen.combine_masks(linen.make_causal_mask(tokens), linen.make_attention_mask(tokens, tokens))
    rows = tokens[..., None, None] > 0
    for dtype in (jnp.float32, bool, jnp.int32):
        out: list[Any] = [jnp.where(rows, f(*qkv(seed), mask=mask.astype(dtype)), 0) for f in (ours, flax_nnx)]
        np.testing.assert_allclose(*out, **CLOSE)
    bias = draw(seed, B, H, T, T)
    out = [jnp.where(rows, f(*qkv(seed), bias=bias, mask=mask), 0) for f in (ours, flax_nnx)]
    np.testing.assert_allclose(*out, **CLOSE)


@pytest.mark.parametrize(("name", "shape"), [("mask", (2, 1, 5, 8)), ("bias", (3, 1, 1, 7))])
def test_a_mask_or_bias_of_another_shape_is_refused_by_name(name: str, shape: tuple[int, ...]) -> None:
    q, k = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 7, 4, 8))
    with pytest.raises(ValueError, match=rf"^attention_fn: {name} has shape \({shape[0]}, 1, .*\), expected"):
        ours(q, k, k, **{name: jnp.ones(shape)})
    with pytest.raises(TypeError, match=f"^attention_fn: {name} is list, expected an array"):
        ours(q, k, k, **{name: [1]})


def test_a_query_that_sees_no_key_has_zeros_and_no_gradient(seed: int) -> None:
    mask = jnp.ones((B, 1, T, T), bool).at[0, :, 4].set(False)
    out, pull = jax.vjp(lambda *arrays: ours(*arrays, mask=mask), *qkv(seed))
    assert not out[0, 4].any()
    gradients = pull(jnp.ones_like(out))
    assert all(jnp.isfinite(each).all() for each in gradients)
    assert not gradients[0][0, 4].any()


def test_dropout_follows_its_key_and_keeps_the_mean(seed: int) -> None:
    q, k = jnp.zeros((1, 64, H, D)), jnp.zeros((1, 64, H, D))
    v, key = jnp.ones((1, 64, H, D)), jax.random.key(seed)
    options: dict[str, Any] = {"dropout_rate": 0.25, "dropout_rng": key}
    out = ours(q, k, v, **options)
    assert jnp.array_equal(out, jax.jit(lambda key: ours(q, k, v, dropout_rate=0.25, dropout_rng=key))(key))
    assert not jnp.array_equal(out, ours(q, k, v, dropout_rate=0.25, dropout_rng=jax.random.key(seed + 1)))
    assert jnp.array_equal(ours(q, k, v, **options, deterministic=True), ours(q, k, v))
    kept = out[..., 0] * 64 * 0.75  # of 64 keys of weight 1 / 64, those that are kept, over 0.75
    assert abs(float(kept.mean()) - 48) < 6 * (64 * 0.25 * 0.75 / (64 * H)) ** 0.5  # six standard deviations
    with pytest.raises(ValueError, match=r"^attention_fn: dropout_rng is None, expected a key of jax.random"):
        ours(q, k, v, dropout_rate=0.25)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_result_has_the_dtype_that_is_asked_for(dtype: Any, seed: int) -> None:
    arrays = qkv(seed)
    assert ours(*arrays, dtype=dtype).dtype == dtype
    assert ours(*(array.astype(dtype) for array in arrays)).dtype == dtype
    assert ours(arrays[0], *(array.astype(dtype) for array in arrays[1:])).dtype == jnp.float32


def test_a_function_that_promotes_dtypes_is_called(seed: int) -> None:
    def lowered(arrays: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
        assert dtype is None
        return tuple(array.astype(jnp.bfloat16) for array in arrays)

    assert ours(*qkv(seed), promote_dtype=lowered).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ["module", "qk_attn_weights_einsum", "attn_weights_value_einsum"])
def test_what_is_not_done_is_refused_by_name(name: str, seed: int) -> None:
    with pytest.raises(NotImplementedError, match=f"^attention_fn: {name} is not supported"):
        in_linen(*qkv(seed), **{name: object()})
    with pytest.raises(NotImplementedError, match=r"^attention_fn: module is not supported"):
        ours(*qkv(seed), module=object())


def test_all_arguments_of_flax_are_taken() -> None:
    for own, theirs in ((ours, flax_nnx), (in_linen, linen.dot_product_attention)):
        assert list(inspect.signature(own).parameters) == list(inspect.signature(theirs).parameters)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_module_of_nnx_has_the_results_and_gradients_of_flax(is_causal: bool, seed: int) -> None:
    found = []
    for function in (ours, flax_nnx):
        module = nnx.MultiHeadAttention(
            num_heads=H, in_features=32, decode=False, attention_fn=function, rngs=nnx.Rngs(seed)
        )
        x = draw(seed, B, T, 32)
        loss, gradients = nnx.value_and_grad(lambda m, x=x: (m(x, is_causal=is_causal) ** 2).sum())(module)
        found.append((loss, gradients))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *found)


def test_a_module_of_nnx_decodes_with_its_cache_and_drops(seed: int) -> None:
    x = draw(seed, B, 6, 32)
    outs: list[Any] = []
    for function in (ours, flax_nnx):
        module = nnx.MultiHeadAttention(
            num_heads=H, in_features=32, decode=True, attention_fn=function, rngs=nnx.Rngs(seed)
        )
        module.init_cache((B, 6, 32))
        outs.append(jnp.concatenate([module(x[:, i : i + 1]) for i in range(6)], 1))
    np.testing.assert_allclose(*outs, **CLOSE)
    module = nnx.MultiHeadAttention(
        num_heads=H,
        in_features=32,
        decode=False,
        dropout_rate=0.5,
        deterministic=False,
        attention_fn=ours,
        rngs=nnx.Rngs(seed),
    )
    first, second = module(x), module(x)
    assert not jnp.array_equal(first, second)
    assert jnp.array_equal(module(x, deterministic=True), module(x, deterministic=True))


def test_a_module_of_linen_has_the_results_and_gradients_of_flax(seed: int) -> None:
    x, mask = draw(seed, B, T, 32), linen.make_causal_mask(jnp.ones((B, T)))
    modules = [
        linen.MultiHeadDotProductAttention(num_heads=H, attention_fn=function)
        for function in (in_linen, linen.dot_product_attention)
    ]
    variables = modules[0].init(jax.random.key(seed), x, mask=mask)
    found = [jax.value_and_grad(lambda v, m=m: (m.apply(v, x, mask=mask) ** 2).sum())(variables) for m in modules]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *found)
    dropping = linen.MultiHeadDotProductAttention(
        num_heads=H, dropout_rate=0.5, deterministic=False, attention_fn=in_linen
    )
    out: list[Any] = [dropping.apply(variables, x, rngs={"dropout": jax.random.key(seed + i)}) for i in (0, 0, 1)]
    assert jnp.array_equal(out[0], out[1])
    assert not jnp.array_equal(out[0], out[2])


def test_flax_is_not_imported() -> None:
    code = "import sys, retrograd.jax.nnx, retrograd.jax.linen; sys.exit('flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
