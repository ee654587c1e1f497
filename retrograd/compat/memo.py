"""Values computed once for a tensor that many layers get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Value = TypeVar("Value")


class PerTensor(Generic[Value]):
    """Keeps a value for each tensor, until the tensor is modified or freed."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()  # tensor -> its version, and the value

    def __call__(self, tensor: Tensor, compute: Callable[[Tensor], Value]) -> Value:
        """The value, computed unless it is known."""
        if torch.compiler.is_compiling() or tensor.is_inference():  # such tensors have no version
            return compute(tensor)
        version, value = self._known.get(tensor, (None, None))
        if version != tensor._version:
            value = compute(tensor)
            self._known[tensor] = tensor._version, value
        return value
