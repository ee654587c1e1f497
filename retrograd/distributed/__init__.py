"""Sums over processes in a fixed order: the same gradients, to the bit, on any number of GPUs."""

from __future__ import annotations

from .ddp import ordered_hook
from .exchange import all_reduce_, reduce_scatter
from .fsdp import OrderedReduceScatter, order_fsdp
from .gradients import SlotSum
from .slots import Slots
from .tree import Tree, tree_sum

__all__ = [
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
