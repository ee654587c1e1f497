"""A Mamba-2 layer and a layer of attention as equinox modules, on retrograd's kernels; trained to recall a sequence.

python examples/equinox_layers.py
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from retrograd.jax import attention, causal_conv1d, rms_norm, ssd


class Mamba2(eqx.Module):
    """Projection to a gate z, inputs x, B and C, and step sizes; convolution, scan, gated norm, projection."""

    in_proj: Array
    conv: Array
    A_log: Array
    D: Array
    dt_bias: Array
    norm: Array
    out_proj: Array
    headdim: int = eqx.field(static=True)

    def __init__(self, d_model: int, d_state: int, headdim: int, key: Array) -> None:
        inner, heads = 2 * d_model, 2 * d_model // headdim
        keys = jax.random.split(key, 3)
        self.in_proj = jax.random.normal(keys[0], (d_model, 2 * inner + 2 * d_state + heads)) / d_model**0.5
        self.conv = jax.random.normal(keys[1], (inner + 2 * d_state, 4)) / 2
        self.A_log, self.D, self.dt_bias = jnp.zeros(heads), jnp.ones(heads), jnp.full(heads, -3.0)
        self.norm = jnp.ones(inner)
        self.out_proj = jax.random.normal(keys[2], (inner, d_model)) / inner**0.5
        self.headdim = headdim

    def __call__(self, u: Array) -> Array:
        """(B, T, d_model) -> (B, T, d_model)."""
        inner, heads = len(self.norm), len(self.D)
        z, xBC, dt = jnp.split(u @ self.in_proj, [inner, inner + len(self.conv)], axis=-1)
        x, B, C = jnp.split(
            causal_conv1d(xBC, self.conv, activation="silu"), [inner, (inner + len(self.conv)) // 2], -1
        )
        x = x.reshape(*x.shape[:2], heads, self.headdim)
        options = {"D": self.D, "dt_bias": self.dt_bias, "dt_softplus": True}
        y = ssd(x, dt, -jnp.exp(self.A_log), B[:, :, None], C[:, :, None], **options)
        return rms_norm(y.reshape(*y.shape[:2], inner), self.norm, gate=z) @ self.out_proj


class Attention(eqx.Module):
    """Causal attention with shared heads of keys and values."""

    q_proj: Array
    kv_proj: Array
    out_proj: Array

    def __init__(self, d_model: int, heads: int, groups: int, key: Array) -> None:
        size, keys = d_model // heads, jax.random.split(key, 3)
        self.q_proj = jax.random.normal(keys[0], (d_model, heads, size)) / d_model**0.5
        self.kv_proj = jax.random.normal(keys[1], (2, d_model, groups, size)) / d_model**0.5
        self.out_proj = jax.random.normal(keys[2], (heads, size, d_model)) / d_model**0.5

    def __call__(self, u: Array) -> Array:
        """(B, T, d_model) -> (B, T, d_model)."""
        q = jnp.einsum("btc,chd->bthd", u, self.q_proj)
        k, v = jnp.einsum("btc,nchd->nbthd", u, self.kv_proj)
        return jnp.einsum("bthd,hdc->btc", attention(q, k, v, causal=True), self.out_proj)


def loss_of(layers: tuple[eqx.Module, ...], x: Array, y: Array) -> Array:
    """The mean square error of a residual stream."""
    for layer in layers:
        x = x + layer(rms_norm(x))  # type: ignore[operator]
    return jnp.mean((x - y) ** 2)


def main() -> None:
    """Train, and print the loss."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (4, 32, 32))
    y = jnp.roll(x, 3, axis=1).at[:, :3].set(0)  # what was three steps before
    layers = (Mamba2(32, 16, 16, keys[1]), Attention(32, 4, 2, keys[2]))

    @eqx.filter_jit
    def step(layers: tuple[eqx.Module, ...]) -> tuple[Array, tuple[eqx.Module, ...]]:
        loss, gradients = eqx.filter_value_and_grad(loss_of)(layers, x, y)
        return loss, eqx.apply_updates(layers, jax.tree.map(lambda g: -0.05 * g, gradients))

    for number in range(61):
        loss, layers = step(layers)
        if number % 20 == 0:
            print(f"step {number:2d}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
