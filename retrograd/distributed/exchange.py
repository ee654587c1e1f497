"""Sums over processes in a fixed order: each receives all terms of its part, and adds them itself.

NCCL's and gloo's own reductions add in an order that depends on the number of processes, the size of the message and
the algorithm that was chosen for it. Here only copies travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from retrograd.core.tree import first_half, tree_sum

Group = dist.ProcessGroup | None


def reduce_scatter(terms: Tensor, group: Group = None, out: Tensor | None = None) -> Tensor:
    """This process's part of the sum of an array over all processes.

    Args:
        terms: (W n,), contiguous; of one shape and dtype in all W processes.
        group: the processes; all of them by default.
        out: (n,), where the part is written.

    Returns:
        (n,): the rank-th part of the sum, added in the order of the tree over ranks, in the dtype given.

    Raises:
        ValueError: unless `terms` has one axis whose length W divides.
    """
    world = dist.get_world_size(group)
    if terms.ndim != 1 or len(terms) % world:
        raise ValueError(f"reduce_scatter: terms has shape {tuple(terms.shape)}, expected (a multiple of {world},)")
    received = torch.empty_like(terms)
    dist.all_to_all_single(received, terms, group=group)
    return sum_of(received, world, out)


def all_reduce_(terms: Tensor, group: Group = None) -> Tensor:
    """The sum of an array over all processes, in place; every process has the same bits, on any number of processes.

    Args:
        terms: of one shape and dtype in all processes, contiguous.
        group: the processes; all of them by default.

    Returns:
        `terms`, overwritten.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from retrograd.distributed import all_reduce_
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> all_reduce_(torch.ones(3))
        tensor([1., 1., 1.])
        >>> dist.destroy_process_group()
    """
    if not terms.is_contiguous():
        raise ValueError(f"all_reduce_: terms has strides {terms.stride()}, expected a contiguous array")
    world = dist.get_world_size(group)
    if world == 1:
        return terms
    flat = terms.view(-1)
    padded = in_parts(flat, world)
    all_gather(padded, reduce_scatter(padded, group), group)
    if padded is not flat:
        flat.copy_(padded[: len(flat)])
    return terms


def all_gather(gathered: Tensor, own: Tensor, group: Group = None) -> None:
    """Write the arrays of all ranks one after another."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
    gather(gathered, own, group=group)


def in_parts(flat: Tensor, world: int) -> Tensor:
    """The array, or a copy with zeros behind it, so that `world` divides its length."""
    if len(flat) % world == 0:
        return flat
    padded = flat.new_zeros(-(-len(flat) // world) * world)
    padded[: len(flat)] = flat
    return padded


def sum_of(received: Tensor, world: int, out: Tensor | None = None) -> Tensor:
    """The sum of the parts of all ranks, which lie one after another; they are overwritten."""
    if world == 1:
        return received if out is None else out.copy_(received)
    parts = received.view(world, -1)
    while len(parts) > 2 and len(parts) % 2 == 0:  # a whole level of the tree by one kernel
        parts = parts[0::2].add_(parts[1::2])
    half = first_half(len(parts))
    first, second = (tree_sum(some, Tensor.add_) for some in (parts[:half].unbind(), parts[half:].unbind()))
    return torch.add(first, second, out=first if out is None else out)


def check_equal(me: str, own: Mapping[str, str], group: Group = None) -> None:
    """Raise ValueError in every process, naming rank and key, unless all have equal values; one message of each."""
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, dict(own), group=group)
    first = every[0]
    for rank, other in enumerate(every):
        for what in first | other:
            if first.get(what) != other.get(what):
                here, there = (values.get(what, "missing") for values in (other, first))
                raise ValueError(f"{me}: {what} is {here} on rank {rank}, expected {there} as on rank 0")
