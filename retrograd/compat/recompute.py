"""Intermediate results that a function recomputes in its backward pass instead of saving them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Again = Callable[..., Tensor]


class _Kept:
    """A saved tensor that must not be modified; autograd does not check this for tensors that pass through hooks."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version

    def __call__(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self.tensor.shape)} that the backward pass needs "
                "has been modified by an inplace operation since the forward pass"
            )
        return self.tensor


class _Recipe:
    """A result to recompute from its arguments; computed at the first request, and kept while the graph needs it."""

    def __init__(self, function: Callable[..., Tensor], arguments: list[_Kept | _View | None]) -> None:
        self.function = function
        self.arguments = arguments
        self.result: Tensor | None = None

    def __call__(self) -> Tensor:
        if self.result is None:
            arguments = [None if argument is None else argument() for argument in self.arguments]
            with torch.no_grad(), torch.autocast(arguments[0].device.type, enabled=False):  # type: ignore[union-attr]
                self.result = self.function(*arguments)
        return self.result


class _View:
    """A view of a recomputed result as it was saved: a matrix product saves it reshaped, a scan parts of it."""

    def __init__(self, recipe: _Recipe, seen: Tensor) -> None:
        self.recipe = recipe
        self.shape, self.strides, self.offset = seen.shape, seen.stride(), seen.storage_offset()

    def __call__(self) -> Tensor:
        result = self.recipe()
        return result.as_strided(self.shape, self.strides, result.storage_offset() + self.offset)


@contextmanager
def recomputed_in_backward(wanted: bool) -> Iterator[Again]:
    """Yields `again(function, *tensors)`, which calls the function. In this context autograd then saves the function's
    arguments instead of its result.

    `again` is a plain call if `wanted` is False, if gradients are disabled, and if the caller has hooks on saved
    tensors: only the innermost hooks are called, so the caller's would be bypassed.
    """
    if not wanted or not torch.is_grad_enabled() or _has_hooks():
        yield lambda function, *tensors: function(*tensors)
        return
    # By the address of their memory; holding the results keeps it from being reused by other tensors.
    recipes: dict[int, tuple[Tensor, _Recipe]] = {}

    def pack(tensor: Tensor) -> _Kept | _View:
        known = recipes.get(tensor.untyped_storage().data_ptr())
        if known is None or known[0].dtype != tensor.dtype:
            return _Kept(tensor)
        return _View(known[1], tensor)

    def again(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        # An argument may itself be a recomputed result.
        arguments = [None if tensor is None else pack(tensor.detach()) for tensor in tensors]
        result = function(*tensors)
        if _fills_its_memory(result):
            recipes[result.untyped_storage().data_ptr()] = result, _Recipe(function, arguments)
        return result

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept()):
            yield again
    finally:
        recipes.clear()  # the graph keeps the hooks


def _fills_its_memory(result: Tensor) -> bool:
    """Whether all that lies in a result's memory is a part of it."""
    return not result.is_meta and result.untyped_storage().nbytes() == result.numel() * result.element_size() > 0


def _has_hooks() -> bool:
    """Whether the caller has hooks on saved tensors, or has disabled them."""
    autograd: Any = torch._C._autograd
    return (
        not autograd._saved_tensors_hooks_is_enabled() or autograd._top_saved_tensors_default_hooks(False) is not None
    )
