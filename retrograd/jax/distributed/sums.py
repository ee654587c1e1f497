"""Sums over the devices of a mesh in a fixed order, for `jax.shard_map`; see ../../distributed/README.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import add
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from retrograd.core.slots import Slots
from retrograd.core.tree import tree_sum

T = TypeVar("T")
Loss = Callable[..., Array]


def psum(x: T, axis_name: str) -> T:
    """`jax.lax.psum` in the order of a tree over the devices' numbers: the same bits on any number of devices.

    Each device receives all terms of its part and adds them; the parts are then gathered. Only copies travel.

    Args:
        x: arrays, in any pytree; they differ from device to device.
        axis_name: of the mesh, within `jax.shard_map`.

    Returns:
        The sums, which are the same on all devices.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> from retrograd.jax.distributed import psum
        >>> mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
        >>> total = jax.shard_map(lambda x: psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
        >>> total(jnp.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """
    return jax.tree.map(lambda leaf: _sum(leaf, axis_name), x)


def _sum(x: Array, axis_name: str) -> Array:
    world = jax.lax.axis_size(axis_name)
    flat = jnp.pad(x.reshape(-1), (0, -x.size % world)).reshape(world, -1)
    terms = jax.lax.all_to_all(flat, axis_name, split_axis=0, concat_axis=0)
    own = tree_sum(list(terms), add)
    whole = jax.lax.all_gather(own, axis_name, tiled=True, to="invarying")
    return whole[: x.size].reshape(x.shape)


def slot_value_and_grad(loss: Loss, mesh: Mesh, axis_name: str) -> Callable[[Any, Any], tuple[Array, Any]]:
    """The loss of a batch in slots and its gradient, added in an order that does not depend on the number of devices.

    Each device computes its slots one after another, by one compiled function whose shapes are those of a slot. It
    keeps log2(slots of a device) + 1 partial sums.

    Args:
        loss: loss(params, slot) of one slot, as its part of the batch's loss.
        mesh: the devices.
        axis_name: of the mesh, along which the slots are divided.

    Returns:
        A function of params and slots, (S, ...) in any pytree, to be called outside of `jax.jit`. It returns the sum of
        the losses over all slots, and that of the gradients, the same on all devices.

    Raises:
        ValueError: from the function, for numbers of slots that `retrograd.distributed.Slots` refuses.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax.distributed import slot_value_and_grad
        >>> def loss(params, slot):
        ...     return ((slot @ params) ** 2).mean() / 8
        >>> mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
        >>> value, gradient = slot_value_and_grad(loss, mesh, "data")(jnp.ones(4), jnp.ones((8, 16, 4)))
        >>> value.item(), gradient.tolist()
        (16.0, [8.0, 8.0, 8.0, 8.0])
    """
    of_slot, own, everywhere = jax.value_and_grad(loss), P(axis_name), P()

    def alone(params: Any, slot: Any) -> Any:
        params = jax.lax.pcast(params, axis_name, to="varying")  # else JAX adds the gradients of all devices
        found = of_slot(params, jax.tree.map(lambda x: x[0], slot))
        return jax.tree.map(lambda x: x[None], found)

    def over_devices(found: Any) -> Any:
        return psum(jax.tree.map(lambda x: x[0], found), axis_name)

    each = jax.jit(jax.shard_map(alone, mesh=mesh, in_specs=(everywhere, own), out_specs=own))
    both = jax.jit(partial(jax.tree.map, add), donate_argnums=0)
    whole = jax.jit(jax.shard_map(over_devices, mesh=mesh, in_specs=(own,), out_specs=everywhere))

    def total(params: Any, slots: Any) -> tuple[Array, Any]:
        count, world = len(jax.tree.leaves(slots)[0]), mesh.shape[axis_name]
        steps = len(Slots(count, world).own)
        by_device = jax.tree.map(lambda x: x.reshape(world, steps, *x.shape[1:]), slots)
        terms = (each(params, jax.tree.map(partial(_at, step), by_device)) for step in range(steps))
        found: tuple[Array, Any] = whole(tree_sum(terms, both))
        return found

    return total


def _at(step: int, by_device: Array) -> Array:
    return by_device[:, step]
