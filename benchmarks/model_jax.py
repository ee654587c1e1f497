"""The training steps of models.py in JAX."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from jax import Array
from model_shapes import VOCABULARY, Model
from model_step import Training

from retrograd.jax import nn
from retrograd.models.config import MambaConfig
from retrograd.nn import LanguageModel

KERNELS = 60  # lines of a profile
ADAM = optax.adamw(1e-4, weight_decay=1e-2)


def training(shape: Model, impl: str) -> Training:
    """The training of a model by retrograd.jax.nn, from the parameters that retrograd.nn begins with."""
    torch.manual_seed(0)
    model = LanguageModel(shape.config, device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(1)  # as in model_torch.py
    tokens = torch.randint(VOCABULARY, (shape.batch, shape.time), device="cuda").int().cpu().numpy()
    params = nn.from_torch(model)
    del model
    torch.cuda.empty_cache()
    batch = jnp.asarray(tokens)
    now = [params, ADAM.init(params)]

    def step() -> Array:
        *now[:], loss = take_step(*now, shape.config, batch)
        return loss

    def wait() -> None:
        jax.block_until_ready(now)

    device = jax.devices()[0]
    return Training(
        step,
        wait,
        sum(array.size for array in params.values()),
        "retrograd",
        lambda: (device.memory_stats() or {}).get("peak_bytes_in_use", 0),
        lambda: None,
        profiled,
    )


@partial(jax.jit, static_argnums=2, donate_argnums=(0, 1))
def take_step(params: dict[str, Array], state: Any, config: MambaConfig, tokens: Array) -> tuple[Any, Any, Array]:
    """A step of AdamW."""
    loss, gradients = jax.value_and_grad(next_token_loss)(params, config, tokens)
    updates, state = ADAM.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def next_token_loss(params: dict[str, Array], config: MambaConfig, tokens: Array) -> Array:
    """The mean over all tokens but the first; the last logits count for nothing, which is cheaper than a slice."""
    logits = nn.language_model(params, config, tokens).astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.roll(tokens, -1, axis=1))
    return losses[:, :-1].mean()


def profiled(steps: Callable[[], Any]) -> str:
    """A table of the kernels that take the most time."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            steps()
        (file,) = Path(folder).rglob("*.xplane.pb")
        recorded = jax.profiler.ProfileData.from_file(str(file))
    total, count = Counter[str](), Counter[str]()
    for plane in recorded.planes:
        if "GPU" in plane.name:
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        total[event.name] += event.duration_ns
                        count[event.name] += 1
    lines = [f"{name[:110]:110} {ns / 1e6:10.3f} ms {count[name]:6}" for name, ns in total.most_common(KERNELS)]
    return "\n".join([*lines, f"{'all':110} {sum(total.values()) / 1e6:10.3f} ms {sum(count.values()):6}"])
