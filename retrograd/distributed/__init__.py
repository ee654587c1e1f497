"""Sums over processes in a fixed order: the same gradients, to the bit, on any number of GPUs."""

from __future__ import annotations

from retrograd.core.slots import Slots
from retrograd.core.tree import Tree, tree_sum

from .context import ContextParallel, Layout
from .ddp import ordered_hook
from .exchange import all_reduce_, reduce_scatter
from .fsdp import OrderedReduceScatter, order_fsdp
from .gradients import SlotSum

__all__ = [
    "ContextParallel",
    "Layout",
    "OrderedReduceScatter",
    "SlotSum",
    "Slots",
    "Tree",
    "all_reduce_",
    "order_fsdp",
    "ordered_hook",
    "reduce_scatter",
    "tree_sum",
]
