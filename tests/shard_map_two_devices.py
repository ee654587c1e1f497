"""Checks on two devices, in a process of their own since JAX fixes the number at its start; run by test_jax.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from xla_flags import quick

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=2 {quick()}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from retrograd.jax import causal_conv1d, linear_scan, nn, rms_norm, selective_scan, ssd

ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()
CONFIG = nn.MambaConfig(d_model=8, n_layer=1, vocab_size=11, ssm_cfg=nn.Mamba1Config(d_state=4))
HYBRID = nn.MambaConfig(
    d_model=8,
    n_layer=2,
    vocab_size=11,
    d_intermediate=4,
    ssm_cfg=nn.Mamba2Config(d_state=4, headdim=4),
    attn_layer_idx=(1,),
    attn_cfg=nn.AttentionConfig(num_heads=2, mlp_dim=2, d_conv=2, rotary_emb_dim=2, qk_norm=True),
)
ATTENTION = replace(HYBRID, n_layer=1, d_intermediate=0, attn_layer_idx=(0,))


def drawn(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def functions() -> dict[str, tuple[Callable[..., jax.Array], list[Any], int]]:
    """Name -> (function, its arguments, the number of leading arguments that have rows)."""
    x, dt, matrix = drawn(0, 4, 9, 8), drawn(1, 4, 9, 8), drawn(2, 4, 9, 4)
    tokens = jnp.arange(36).reshape(4, 9) % 11
    return {
        "rms_norm": (rms_norm, [x, drawn(4, 8)], 1),
        "linear_scan": (lambda b, a: linear_scan(jax.nn.sigmoid(a), b), [x, drawn(4, 1, 9, 8)], 1),
        "causal_conv1d": (lambda x, w: causal_conv1d(x, w, activation="silu"), [x, drawn(4, 8, 3)], 1),
        "selective_scan": (
            lambda x, dt, B, A, D: selective_scan(x, dt, -jnp.exp(A), B, B, D=D, dt_softplus=True),
            [x, dt, matrix, drawn(4, 8, 4), drawn(5, 8)],
            3,
        ),
        "ssd": (
            lambda x, dt, B, A, D: ssd(x, dt, -jnp.exp(A), B, B, D=D, dt_softplus=True, dt_limit=(0.1, 2.0)),
            [drawn(0, 4, 9, 8, 2), dt, drawn(2, 4, 9, 2, 4), drawn(4, 8), drawn(5, 8)],
            3,
        ),
        "nn": (partial(language_model, CONFIG), [tokens, nn.init(jax.random.key(3), CONFIG)], 1),
        "nn, hybrid": (partial(language_model, HYBRID), [tokens, nn.init(jax.random.key(3), HYBRID)], 1),
        "nn, a step": (last_step, [tokens, nn.init(jax.random.key(3), ATTENTION)], 1),
    }


def language_model(config: nn.MambaConfig, tokens: jax.Array, params: dict[str, jax.Array]) -> jax.Array:
    return nn.language_model(params, config, tokens)


def last_step(tokens: jax.Array, params: dict[str, jax.Array]) -> jax.Array:
    _, state = nn.language_model(params, ATTENTION, tokens[:, :8], nn.initial_state(ATTENTION, len(tokens), capacity=9))
    return nn.step(params, ATTENTION, tokens[:, 8], state)[0]


def in_shard_map(function: Callable[..., jax.Array], rows: int, arguments: list[Any], mesh: Mesh) -> Any:
    specs = tuple(ROWS if index < rows else WHOLE for index in range(len(arguments)))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=ROWS)


def main() -> None:
    auto, explicit = (jax.make_mesh((2,), ("data",), axis_types=(kind,)) for kind in (AxisType.Auto, AxisType.Explicit))
    for name, (function, arguments, rows) in functions().items():
        floats = tuple(index for index, argument in enumerate(arguments) if not name.startswith("nn") or index)

        def gradients(function: Callable[..., jax.Array], floats: tuple[int, ...] = floats) -> Any:
            return jax.jit(jax.grad(lambda *args: function(*args).var(), floats))

        expected = gradients(function)(*arguments)
        mapped = gradients(in_shard_map(function, rows, arguments, auto))(*arguments)
        with jax.set_mesh(explicit):
            spread = [jax.device_put(a, ROWS if index < rows else WHOLE) for index, a in enumerate(arguments)]
            meshed = gradients(function)(*spread)
        for way, found in (("shard_map", mapped), ("explicit mesh", meshed)):
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=f"{name}, {way}")


if __name__ == "__main__":
    main()
