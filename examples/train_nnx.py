"""A loop with flax's nnx and optax: a layer of Mamba-2 and one of attention foretell bytes.

python examples/train_nnx.py --steps 60
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from nnx_layers import Model

from retrograd.jax import rms_norm


class Bytes(nnx.Module):
    """Bytes to logits of the next byte."""

    def __init__(self, d_model: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(256, d_model, rngs=rngs)
        self.layers = Model(d_model, rngs)

    def __call__(self, tokens: Array) -> Array:
        """(B, T) -> (B, T, 256)."""
        return self.embedding.attend(rms_norm(self.layers(self.embedding(tokens))))


@nnx.jit
def train(model: Bytes, optimizer: nnx.Optimizer, rows: Array) -> Array:
    """One step; returns the loss."""

    def loss_of(model: Bytes) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(rows[:, :-1]), rows[:, 1:]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    """Train on a module of Python's standard library, and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    text = np.frombuffer((Path(sysconfig.get_paths()["stdlib"]) / "inspect.py").read_bytes(), np.uint8).astype(np.int32)
    model = Bytes(32, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    draw = np.random.default_rng(0)
    for step in range(steps):
        starts = draw.integers(len(text) - 65, size=(8, 1))
        loss = train(model, optimizer, jnp.asarray(text[starts + np.arange(65)]))
        if step % (steps // 3) == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
