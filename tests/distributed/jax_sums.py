"""Sums over the devices of a mesh, on four of a CPU, in a process of their own; run by test_jax_devices.py."""

from __future__ import annotations

import os

from xla_flags import quick

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=4 {quick()}"
os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from retrograd.core.tree import tree_sum
from retrograd.jax import nn
from retrograd.jax.distributed import psum, slot_value_and_grad

SLOTS = 8
CONFIG = nn.MambaConfig(
    d_model=8,
    n_layer=2,
    vocab_size=11,
    ssm_cfg=nn.Mamba2Config(d_state=4, headdim=4),
    attn_layer_idx=(1,),
    attn_cfg=nn.AttentionConfig(num_heads=2, d_conv=2, rotary_emb_dim=2),
)


def loss(params: Any, tokens: jax.Array) -> jax.Array:
    """Of one slot, as its part of the batch's."""
    logits = nn.language_model(params, CONFIG, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean() / SLOTS


def mesh_of(world: int) -> jax.sharding.Mesh:
    return jax.make_mesh((world,), ("data",), (AxisType.Auto,), devices=jax.devices()[:world])


def sums() -> None:
    """`psum` adds in the order of the tree, and its result is the same on all devices."""
    terms = jax.random.normal(jax.random.key(0), (4, 3, 5))
    added = jax.shard_map(lambda x: psum(x[0], "data"), mesh=mesh_of(4), in_specs=P("data"), out_specs=P())
    expected = tree_sum([np.asarray(term) for term in terms], np.add)
    np.testing.assert_array_equal(np.asarray(jax.jit(added)(terms)), expected)


def gradients() -> None:
    """Gradients of a batch in slots on 1, 2 and 4 devices, and those of the batch."""
    params = nn.init(jax.random.key(0), CONFIG)
    batch = jax.random.randint(jax.random.key(1), (SLOTS, 2, 9), 0, 11)
    found = []
    for world in (1, 2, 4):
        total = slot_value_and_grad(loss, mesh_of(world), "data")
        found.append(jax.tree.map(np.asarray, total(params, batch)))
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)
    whole = jax.jit(jax.value_and_grad(lambda params: jax.vmap(loss, (None, 0))(params, batch).sum()))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found[0], whole)


def refusals() -> None:
    """An error for slots that the devices do not divide."""
    total = slot_value_and_grad(loss, mesh_of(4), "data")
    with pytest.raises(ValueError, match="world is 4, expected one of 3, 6 for 6 slots"):
        total(nn.init(jax.random.key(0), CONFIG), jnp.zeros((6, 2, 9), jnp.int32))


if __name__ == "__main__":
    sums()
    gradients()
    refusals()
