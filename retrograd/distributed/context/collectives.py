"""Copies between processes that have gradients: gathered steps, and steps exchanged for heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.tree import tree_sum
from retrograd.distributed.exchange import all_gather

from .layout import Layout

Group = dist.ProcessGroup | None


class Later:
    """Numbers that the host reads later, when it has started what does not depend on them."""

    def __init__(self, x: Tensor) -> None:
        self._host, self._event = x, None
        if x.is_cuda:
            self._host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._host.copy_(x, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[float]:
        """The numbers; waits for what was started before them."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


def gathered(x: Tensor, sizes: Sequence[int], dim: int, group: Group) -> Tensor:
    """The parts of all ranks, `sizes` long along an axis, one after another.

    The gradient of a part is the sum of all ranks' gradients of it, in the order of ranks and in float32 at least.
    """
    found: Tensor = _Gathered.apply(x, tuple(sizes), dim % x.ndim, group)
    return found


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[int, ...], dim: int, group: Group) -> Tensor:
        ctx.given = (sizes, dim, group)
        first, longest = x.movedim(dim, 0), max(sizes)
        padded = first.new_zeros((longest, *first.shape[1:]))
        padded[: len(first)] = first
        every = first.new_empty((len(sizes), *padded.shape))
        all_gather(real(every), real(padded), group)
        return torch.cat([part[:size] for part, size in zip(every, sizes, strict=True)]).movedim(0, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sizes, dim, group = ctx.given
        own = sizes[dist.get_rank(group)]
        parts = gradient.movedim(dim, 0).split(sizes)
        shape = (own, *parts[0].shape[1:])
        received = exchanged([part.reshape(-1) for part in parts], [prod(shape)] * len(sizes), group)
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total = tree_sum([part.to(wide) for part in received], torch.add).to(gradient.dtype)
        return total.view(shape).movedim(0, dim), None, None, None


def exchanged(parts: Sequence[Tensor], lengths: Sequence[int], group: Group) -> list[Tensor]:
    """The flat part that each rank has for this one, of these lengths, for those that it has for them."""
    sent = torch.cat(list(parts))
    received = sent.new_empty(sum(lengths))
    factor = 2 if sent.is_complex() else 1
    sizes = ([factor * length for length in lengths], [factor * len(part) for part in parts])
    dist.all_to_all_single(real(received), real(sent), *sizes, group=group)
    return list(received.split(list(lengths)))


def heads_of_all(layout: Layout, group: Group, *arrays: Tensor) -> tuple[Tensor, ...]:
    """A W-th of the heads with the steps of all ranks, of arrays (B, own steps, H, ...) with all heads."""
    return tuple(_Exchanged.apply(_to_heads, _to_steps, layout, group, *arrays))


def steps_of_all(layout: Layout, group: Group, *arrays: Tensor) -> tuple[Tensor, ...]:
    """The inverse of `heads_of_all`."""
    return tuple(_Exchanged.apply(_to_steps, _to_heads, layout, group, *arrays))


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, there: Callable[..., Any], back: Any, layout: Layout, group: Group, *arrays: Tensor) -> Any:
        ctx.given = (back, layout, group)
        return there(layout, group, arrays)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, layout, group = ctx.given
        return (None, None, None, None, *back(layout, group, gradients))


def _to_heads(layout: Layout, group: Group, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
    by_rank = [array.chunk(layout.world, dim=2) for array in arrays]
    shapes = [[(a.shape[0], steps, a.shape[2] // layout.world, *a.shape[3:]) for a in arrays] for steps in layout.sizes]
    return tuple(torch.cat(parts, dim=1) for parts in _swapped(by_rank, shapes, group))


def _to_steps(layout: Layout, group: Group, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
    by_rank = [array.split(layout.sizes, dim=1) for array in arrays]
    shape = [(array.shape[0], len(layout.own), *array.shape[2:]) for array in arrays]
    return tuple(torch.cat(parts, dim=2) for parts in _swapped(by_rank, [shape] * layout.world, group))


def _swapped(
    by_rank: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[tuple[int, ...]]], group: Group
) -> list[list[Tensor]]:
    """For each array the part from each rank, of `shapes[rank][array]`, in one message to each rank."""
    sent = [torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*by_rank, strict=True)]
    received = exchanged(sent, [sum(map(prod, own)) for own in shapes], group)
    found = [part.split(list(map(prod, own))) for part, own in zip(received, shapes, strict=True)]
    return [
        [found[rank][array].view(shapes[rank][array]) for rank in range(len(shapes))] for array in range(len(by_rank))
    ]


def real(x: Tensor) -> Tensor:
    """The numbers of a dense array along one axis; a complex one has two each."""
    return (torch.view_as_real(x) if x.is_complex() else x).view(-1)
