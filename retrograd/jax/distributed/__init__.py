"""Several devices, for `jax.shard_map`: sums in a fixed order, and sequences longer than one device."""

from .context import ContextParallel
from .sums import psum, slot_value_and_grad

__all__ = ["ContextParallel", "psum", "slot_value_and_grad"]
