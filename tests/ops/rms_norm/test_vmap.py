"""A vmapped rms_norm is one call, whichever arguments are batched: there is no loop over the batch."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from retrograd.jax import rms_norm

CALLS = 3
SHAPES = {
    "a row": ((64,), (64,)),
    "rows": ((5, 64), (64,)),
    "heads": ((5, 4, 64), (4, 64)),
    "one head": ((5, 1, 64), (1, 64)),
    "groups": ((5, 64), (64,)),
}


OWN = ("x", "weight", "x and weight")
CALLED = [
    pytest.param(shapes, own, marks=() if OWN[place % len(OWN)] == own else pytest.mark.slow)
    for place, shapes in enumerate(SHAPES)
    for own in OWN
]


@pytest.mark.parametrize(("name", "own"), CALLED)
def test_a_batch_of_calls_is_one_call_with_the_gradients_of_each(name: str, own: str, seed: int) -> None:
    keys = jax.random.split(jax.random.key(seed), 2)
    x, weight = (jax.random.normal(key, (CALLS, *shape)) for key, shape in zip(keys, SHAPES[name], strict=True))
    axes = (0 if "x" in own else None, 0 if "weight" in own else None)
    arguments = [array if axis == 0 else array[0] for array, axis in zip((x, weight), axes, strict=True)]

    def loss(x: jax.Array, weight: jax.Array) -> jax.Array:
        return (rms_norm(x, weight, group_size=16 if name == "groups" else None) ** 3).sum()

    gradients = jax.grad(loss, (0, 1))
    batched = jax.vmap(gradients, axes)
    assert "scan" not in str(jax.make_jaxpr(batched)(*arguments))
    found = batched(*arguments)
    for i in range(CALLS):
        alone = gradients(*(array[i] if axis == 0 else array for array, axis in zip(arguments, axes, strict=True)))
        for a, b in zip(found, alone, strict=True):
            assert jnp.allclose(a[i], b, rtol=1e-4, atol=1e-4)
