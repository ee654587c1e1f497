"""Intermediate results that a function would rather compute again in its backward pass than keep until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Again = Callable[..., Tensor]


class _Kept:
    """A tensor, which has to be as it was; autograd does not look after tensors that go through hooks."""

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
    """A result, by what it was made from; made again when first asked for, and kept while the graph needs it."""

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
    """A result that is made again, as its user saw it: a product of matrices sees rows and columns."""

    def __init__(self, recipe: _Recipe, seen: Tensor) -> None:
        self.recipe = recipe
        self.shape, self.strides = seen.shape, seen.stride()

    def __call__(self) -> Tensor:
        return self.recipe().as_strided(self.shape, self.strides)


@contextmanager
def recomputed_in_backward(wanted: bool) -> Iterator[Again]:
    """Gives `again(function, *tensors)`: calls the function, and lets what is saved for the backward pass in this
    context hold the arguments in place of the result.

    Nothing but a call where it is not wanted, where no gradient is asked for, and where the caller has hooks on saved
    tensors: only the innermost hooks are ever asked, so his would see nothing.
    """
    if not wanted or not torch.is_grad_enabled() or _has_hooks():
        yield lambda function, *tensors: function(*tensors)
        return
    # By address; the results stay alive in here, so that no other tensor gets the address of one of them.
    made: dict[int, tuple[Tensor, _Recipe]] = {}

    def pack(tensor: Tensor) -> _Kept | _View:
        known = made.get(tensor.data_ptr())
        if known is None or known[0].numel() != tensor.numel() or known[0].dtype != tensor.dtype:
            return _Kept(tensor)
        return _View(known[1], tensor)

    def again(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        # What a result is made from may itself be made again.
        arguments = [None if tensor is None else pack(tensor.detach()) for tensor in tensors]
        result = function(*tensors)
        made[result.data_ptr()] = result, _Recipe(function, arguments)
        return result

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept()):
            yield again
    finally:
        made.clear()  # the graph keeps the hooks


def _has_hooks() -> bool:
    """Whether the caller has hooks, or has forbidden any."""
    autograd: Any = torch._C._autograd
    return (
        not autograd._saved_tensors_hooks_is_enabled() or autograd._top_saved_tensors_default_hooks(False) is not None
    )
