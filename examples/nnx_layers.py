"""A Mamba-2 layer as a flax nnx module, beside flax's own attention on retrograd's kernels.

python examples/nnx_layers.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from retrograd.jax import causal_conv1d, rms_norm, ssd
from retrograd.jax.nnx import attention_fn


class Mamba2(nnx.Module):
    """Projection to a gate z, inputs x, B and C, and step sizes; convolution, scan, gated norm, projection."""

    def __init__(self, d_model: int, d_state: int, headdim: int, rngs: nnx.Rngs) -> None:
        self.inner, self.d_state, self.headdim = 2 * d_model, d_state, headdim
        self.heads, self.conv_dim = self.inner // headdim, self.inner + 2 * d_state
        self.in_proj = nnx.Linear(d_model, self.inner + self.conv_dim + self.heads, use_bias=False, rngs=rngs)
        self.conv = nnx.Param(jax.random.normal(rngs.params(), (self.conv_dim, 4)) / 2)
        self.A_log, self.D = nnx.Param(jnp.zeros(self.heads)), nnx.Param(jnp.ones(self.heads))
        self.dt_bias, self.norm = nnx.Param(jnp.full(self.heads, -3.0)), nnx.Param(jnp.ones(self.inner))
        self.out_proj = nnx.Linear(self.inner, d_model, use_bias=False, rngs=rngs)

    def __call__(self, u: Array) -> Array:
        """(B, T, d_model) -> (B, T, d_model)."""
        z, xBC, dt = jnp.split(self.in_proj(u), [self.inner, self.inner + self.conv_dim], axis=-1)
        xBC = causal_conv1d(xBC, self.conv[...], activation="silu")
        x, B, C = jnp.split(xBC, [self.inner, self.inner + self.d_state], axis=-1)
        x = x.reshape(*x.shape[:2], self.heads, self.headdim)
        options = {"D": self.D[...], "dt_bias": self.dt_bias[...], "dt_softplus": True}
        y = ssd(x, dt, -jnp.exp(self.A_log[...]), B[:, :, None], C[:, :, None], **options)
        return self.out_proj(rms_norm(y.reshape(*y.shape[:2], self.inner), self.norm[...], gate=z))


class Model(nnx.Module):
    """A residual stream with one layer of each kind."""

    def __init__(self, d_model: int, rngs: nnx.Rngs) -> None:
        self.mamba = Mamba2(d_model, 16, 16, rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=d_model, decode=False, attention_fn=attention_fn, rngs=rngs
        )

    def __call__(self, x: Array) -> Array:
        """(B, T, d_model) -> (B, T, d_model)."""
        x = x + self.mamba(rms_norm(x))
        return x + self.attention(rms_norm(x), is_causal=True)


def main() -> None:
    """Train, and print the loss."""
    x = jax.random.normal(jax.random.key(0), (4, 32, 32))
    y = jnp.roll(x, 3, axis=1).at[:, :3].set(0)  # what was three steps before
    model = Model(32, nnx.Rngs(0))

    @nnx.jit
    def step(model: Model) -> Array:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        parameters = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.05 * g, parameters, gradients))
        return loss

    for number in range(61):
        loss = step(model)
        if number % 20 == 0:
            print(f"step {number:2d}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
