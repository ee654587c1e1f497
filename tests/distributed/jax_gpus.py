"""Kernels on all GPUs of a machine, in a context and under `jax.jit`; run by test_jax_devices.py."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cuda")

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_context
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from retrograd.jax import attention, rms_norm, ssd

WORLD = len(jax.devices())
ROWS = P("data")


def draw(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape).astype(jnp.bfloat16)


def contexts() -> None:
    """Steps have the bits of one GPU: where states are passed on in turn, where they are forgotten, and packed.

    GPUs have 1024 steps each, so that the borders of packed sequences are multiples of 256 from where they begin.
    """
    jax_context.D = jax_context.N = 64  # which kernels take
    time = 1024 * WORLD
    for bounds, rate in ((None, 1), (None, 512), ((5, 512, 1280, time - 1), 1)):
        different = jax_context.differences(WORLD, time, bounds, rate=rate, bits=True)
        assert different == [], different


def check(function: Callable[..., jax.Array], arrays: dict[str, jax.Array], shared: str = "") -> None:
    """A call that XLA divides by rows has the result and the gradients of one GPU, and gathers nothing."""

    def both(arrays: dict[str, jax.Array]) -> Any:
        result, back = jax.vjp(lambda arrays: function(**arrays), arrays)
        return result, back(draw(*result.shape).astype(result.dtype))[0]

    mesh = jax.make_mesh((WORLD,), ("data",), (AxisType.Auto,))
    placed = {name: jax.device_put(x, NamedSharding(mesh, P() if name in shared.split() else ROWS))
              for name, x in arrays.items()}  # fmt: skip
    expected, compiled = jax.jit(both)(arrays), jax.jit(both).lower(placed).compile()
    assert "all-gather" not in (compiled.as_text() or "")
    for wanted, found in zip(jax.tree.leaves(expected), jax.tree.leaves(compiled(placed)), strict=True):
        one, other = (np.asarray(x.astype(jnp.float32)) for x in (wanted, found))
        np.testing.assert_allclose(other, one, rtol=2e-2, atol=2e-2 * np.abs(one).max())


def divided() -> None:
    """Calls under `jax.jit` on arrays whose rows a mesh divides."""
    check(rms_norm, {"x": draw(2 * WORLD, 64, 256), "weight": draw(256)}, "weight")
    heads = {name: draw(2 * WORLD, 256, count, 64) for name, count in (("q", 8), ("k", 2), ("v", 2))}
    check(lambda **arrays: attention(**arrays, causal=True), heads)
    of_states = {"x": draw(2 * WORLD, 256, 8, 64), "B": draw(2 * WORLD, 256, 1, 64), "C": draw(2 * WORLD, 256, 1, 64)}
    steps = {"dt": jax.nn.softplus(draw(2 * WORLD, 256, 8)), "A": -jnp.ones(8)}
    check(ssd, of_states | steps, "A")


if __name__ == "__main__":
    divided()
    contexts()
