"""Intermediate results that a function recomputes in its backward pass instead of saving them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from retrograd.core.torch.launch import launches_directly

Result = Tensor | tuple[Tensor, ...]
Again = Callable[..., Any]


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

    def __init__(self, function: Callable[..., Result], arguments: list[_Kept | _View | None]) -> None:
        self.function = function
        self.arguments = arguments
        self.result: Tensor | None = None  # of several, which share their memory, the first

    def __call__(self) -> Tensor:
        if self.result is None:
            arguments = [None if argument is None else argument() for argument in self.arguments]
            with torch.no_grad(), torch.autocast(arguments[0].device.type, enabled=False):  # type: ignore[union-attr]
                self.result = _parts(self.function(*arguments))[0]
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
def recomputed_in_backward(tensors: Sequence[Tensor], wanted: bool = True) -> Iterator[Again]:
    """Yields `again(function, *arguments)`, which calls the function, whose result is a tensor or a tuple of views of
    one. In this context autograd then saves the function's arguments instead of its result.

    Under `torch.compile` `again` is PyTorch's checkpoint, which the compiler knows. It is a plain call if `wanted` is
    False, if gradients are disabled, if kernels cannot be launched on `tensors` directly, and if the caller has hooks
    on saved tensors: only the innermost hooks are called, so the caller's would be bypassed.
    """
    if wanted and torch.is_grad_enabled() and torch.compiler.is_dynamo_compiling():
        yield lambda function, *arguments: checkpoint(
            function, *arguments, use_reentrant=False, preserve_rng_state=False
        )
        return
    if not wanted or not torch.is_grad_enabled() or not launches_directly(tensors) or _has_hooks():
        yield lambda function, *arguments: function(*arguments)
        return
    # By the address of their memory; holding the results keeps it from being reused by other tensors.
    recipes: dict[int, tuple[Tensor, _Recipe]] = {}

    def pack(tensor: Tensor) -> _Kept | _View:
        known = recipes.get(tensor.untyped_storage().data_ptr())
        if known is None or known[0].dtype != tensor.dtype:
            return _Kept(tensor)
        return _View(known[1], tensor)

    def again(function: Callable[..., Result], *arguments: Tensor | None) -> Result:
        # An argument may itself be a recomputed result.
        packed = [None if tensor is None else pack(tensor.detach()) for tensor in arguments]
        result = function(*arguments)
        parts = _parts(result)
        if _fill_their_memory(parts):
            recipes[parts[0].untyped_storage().data_ptr()] = parts[0], _Recipe(function, packed)
        return result

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept()):
            yield again
    finally:
        recipes.clear()  # the graph keeps the hooks


def _parts(result: Result) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _fill_their_memory(parts: tuple[Tensor, ...]) -> bool:
    """Whether all that lies in the results' memory is a part of one of them."""
    if parts[0].is_meta:
        return False
    memory = parts[0].untyped_storage()
    shared = all(part.untyped_storage().data_ptr() == memory.data_ptr() for part in parts)
    return shared and memory.nbytes() == sum(part.numel() * part.element_size() for part in parts) > 0


def _has_hooks() -> bool:
    """Whether the caller has hooks on saved tensors, or has disabled them."""
    autograd: Any = torch._C._autograd
    return (
        not autograd._saved_tensors_hooks_is_enabled() or autograd._top_saved_tensors_default_hooks(False) is not None
    )
