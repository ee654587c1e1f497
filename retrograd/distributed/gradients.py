"""Gradients of a batch in slots, added in an order that does not depend on the number of processes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from retrograd.core.slots import Slots
from retrograd.core.tree import Tree

from .exchange import Group, all_reduce_, check_equal

Gradients = list[Tensor]


class SlotSum:
    """The sum of the gradients of all slots: the same bits on every number of processes that `slots` takes.

    After the backward pass of each of the process's own slots, `take` moves the gradients away from the parameters.
    `finish` adds those of all processes, and gives every parameter its sum. In between, log2(S / W) + 1 copies of the
    gradients are kept.

    Args:
        parameters: those that have gradients, in one order in all processes.
        slots: of this process.
        group: the processes; all of them by default.
        dtype: in which gradients are added; that of each gradient by default. The sum is returned in the parameter's.

    Raises:
        ValueError: unless all processes have as many slots and parameters of the same shapes and dtypes; raised in
            every process, naming rank and parameter.

    Example:
        >>> import torch
        >>> from retrograd.distributed import SlotSum, Slots
        >>> model, batch = torch.nn.Linear(4, 1), torch.randn(8, 16, 4)
        >>> mine = Slots(8)  # in several processes Slots(8, dist.get_world_size(), dist.get_rank())
        >>> total = SlotSum(model.parameters(), mine)
        >>> for slot in mine.own:
        ...     (model(batch[slot]).square().mean() / 8).backward()
        ...     total.take()
        >>> total.finish()
        >>> model.weight.grad.shape
        torch.Size([1, 4])
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], slots: Slots, group: Group = None, dtype: torch.dtype | None = None
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.slots, self.group, self.dtype = slots, group, dtype
        self._taken = 0
        self._tree: Tree[Gradients] = Tree(_add)
        if slots.world > 1:
            world, rank = dist.get_world_size(group), dist.get_rank(group)
            if (world, rank) != (slots.world, slots.rank):
                here = f"rank {rank} of {world} processes"
                raise ValueError(f"SlotSum: slots is of rank {slots.rank} of {slots.world}, expected {here}")
            shapes = {f"parameter {i}": f"{tuple(p.shape)} {p.dtype}" for i, p in enumerate(self.parameters)}
            check_equal("SlotSum", {"slots.count": str(slots.count), **shapes}, group)

    def take(self) -> None:
        """Take the gradients of one slot from the parameters; one that has none counts as zeros."""
        self._taken += 1
        if self._taken > len(self.slots.own):
            raise self._miscounted()
        taken: Gradients = []
        for parameter in self.parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            taken.append(gradient.contiguous().to(self.dtype or gradient.dtype))
            parameter.grad = None
        self._tree.append(taken)

    @torch.no_grad()
    def finish(self) -> None:
        """Give every parameter the sum over all slots of all processes."""
        if self._taken != len(self.slots.own):
            raise self._miscounted()
        self._taken, total = 0, self._tree.total()
        if self.slots.world > 1:
            for dtype in dict.fromkeys(gradient.dtype for gradient in total):
                alike = [i for i, gradient in enumerate(total) if gradient.dtype == dtype]
                flat = all_reduce_(torch.cat([total[i].view(-1) for i in alike]), self.group)
                for i, part in zip(alike, flat.split([total[i].numel() for i in alike]), strict=True):
                    total[i] = part.view_as(total[i])
        for parameter, gradient in zip(self.parameters, total, strict=True):
            parameter.grad = gradient.to(parameter.dtype)

    def _miscounted(self) -> ValueError:
        return ValueError(f"SlotSum: take was called {self._taken} times, expected {len(self.slots.own)}, its slots")


def _add(first: Gradients, second: Gradients) -> Gradients:
    torch._foreach_add_(first, second)
    return first
