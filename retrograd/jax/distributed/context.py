"""The `context` argument of the ops: their sequences are divided over the devices along an axis of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from retrograd.core.errors import bad_type, bad_value
from retrograd.core.jax.context import Results
from retrograd.core.op import Op

from .attention import attention
from .borders import Borders
from .halo import convolution
from .scans import recurrence

ME = "ContextParallel"
EXCHANGES = {
    "attention": attention,
    "causal_conv1d": convolution,
    "linear_scan": recurrence,
    "selective_scan": recurrence,
    "ssd": recurrence,
}


@dataclass(frozen=True)
class ContextParallel:
    """Divides sequences over devices, each of which passes its own steps and gets the results for them.

    Every device has as many steps as the others, in the order of the axis. Boundaries of packed sequences are those
    among the steps of all devices, and states those of all sequences, both the same on all devices. A convolution's
    second derivatives are refused, and JAX refuses forward mode (`jax.jvp`) of convolutions and scans.

    Attributes:
        axis_name: of the mesh, within `jax.shard_map` with its default checks.

    Raises:
        ValueError: from a call, outside of `jax.shard_map`, or for arguments that no context has.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> from retrograd.jax import causal_conv1d
        >>> from retrograd.jax.distributed import ContextParallel
        >>> mesh = jax.make_mesh((1,), ("cp",), (jax.sharding.AxisType.Auto,))
        >>> def call(x, weight):
        ...     return causal_conv1d(x, weight, context=ContextParallel("cp"))
        >>> steps = P(None, "cp")
        >>> divided = jax.shard_map(call, mesh=mesh, in_specs=(steps, P()), out_specs=steps)
        >>> divided(jnp.ones((2, 100, 8)), jnp.ones((8, 4))).shape
        (2, 100, 8)
    """

    axis_name: str

    def positions(self, time: int, cu_seqlens: Any = None) -> jax.Array:
        """(time,) int32: the position of each of a device's steps in its sequence; 0 outside of every sequence."""
        return self._borders(ME, time).packed(ME, cu_seqlens).positions()

    def call(self, op: Op, run: Callable[..., Results], arrays: dict[str, Any], options: dict[str, Any]) -> Results:
        """The results of an op for this device's steps; `run` computes it on one device."""
        x = next(iter(arrays.values()))
        time = x.shape[1] if getattr(x, "ndim", 0) > 1 else 0  # the op refuses it
        return EXCHANGES[op.name](self._borders(op.name, time), op, run, arrays, options)

    def _borders(self, op: str, time: int) -> Borders:
        if not isinstance(self.axis_name, str):
            raise bad_type(op, "context.axis_name", self.axis_name, "the name of one axis of a mesh")
        try:
            rank = jax.lax.axis_index(self.axis_name)
        except NameError:
            expected = "an axis of a mesh, within jax.shard_map"
            raise bad_value(op, "context.axis_name", self.axis_name, expected) from None
        if not jax.typeof(rank).mat.varying:
            raise bad_value(op, "context", "within jax.shard_map(check_vma=False)", "one with its default checks")
        return Borders(self.axis_name, jax.lax.axis_size(self.axis_name), rank, time, None)
