"""FSDP2 whose gradients have the same bits on every number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from retrograd.core.slots import Slots
from retrograd.core.tree import Tree, tree_sum

from .exchange import reduce_scatter


class OrderedReduceScatter:
    """What `FSDPModule.set_custom_reduce_scatter` takes: the sum of a module's gradients over slots and processes.

    FSDP2 calls it once for each backward pass, that is for each slot. Until the last one it keeps the parts of all
    ranks apart, and returns zeros (negative ones); then it adds everything in the order of the slots.

    Args:
        slots: of this process.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._called = 0
        self._trees: list[Tree[Tensor]] = []  # one for each rank: that of its own slots

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent and for the sum."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """See `torch.distributed.fsdp`.

        Raises:
            ValueError: for another reduction than a sum, and in a group of another size than the slots'.
        """
        if op != dist.ReduceOp.SUM:
            raise ValueError(f"OrderedReduceScatter: op is {op}, expected SUM: use order_fsdp, which asks for it")
        world = dist.get_world_size(group)
        if world != self.slots.world:
            raise ValueError(f"OrderedReduceScatter: the group has {world} processes, expected {self.slots.world}")
        last = self._called == len(self.slots.own) - 1
        self._called = 0 if last else self._called + 1
        if len(self.slots.own) == 1:
            reduce_scatter(input_tensor, group, out=output_tensor)
            return None
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        self._trees = self._trees or [Tree(Tensor.add_) for _ in range(world)]
        for tree, part in zip(self._trees, received.view(world, -1).unbind(), strict=True):
            tree.append(part)
        if not last:
            output_tensor.fill_(-0.0)  # FSDP2 adds it to what comes last: -0 + x is x, also where x is -0
            return None
        output_tensor.copy_(tree_sum((tree.total() for tree in self._trees), Tensor.add_))
        self._trees = []
        return None


def order_fsdp(model: nn.Module, slots: Slots) -> nn.Module:
    """Let the gradients of a model that `fully_shard` has sharded be sums over slots, in their fixed order.

    Call it after `fully_shard`, and run one backward pass for each of the process's own slots, of its loss divided by
    the number of all slots. Gradients are then sums, not means over processes. FSDP2 does not call a reduction in a
    group of one process: there `SlotSum` has the same bits.

    Args:
        model: all modules of it that are sharded.
        slots: of this process; W is the size of the mesh.

    Returns:
        The model.

    Raises:
        ValueError: for a model without sharded modules, and for one process that has several slots.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise ValueError("order_fsdp: model has no module that fully_shard has sharded")
    if slots.world == 1 and slots.count > 1:
        raise ValueError("order_fsdp: slots is of one process, expected several: use SlotSum")
    for module in sharded:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if slots.world > 1:
            module.set_custom_reduce_scatter(OrderedReduceScatter(slots))  # type: ignore[arg-type]  # of a private class
    return model
