"""Values computed once for a tensor that many layers get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Value = TypeVar("Value")

ASYNCHRONOUS = ("cuda",)  # where the host waits for numbers that it reads; elsewhere there is nothing to save
CHANGED = (
    "a tensor that tells packed texts apart was refilled between two calls in a way that PyTorch does not "
    "count (.data, a collective, another library): pass a new tensor, or refill it by copy_"
)


class _Known(NamedTuple):
    """What is known of a tensor: its state as PyTorch counts it, a copy of its numbers, and the value."""

    state: tuple[Any, ...]
    numbers: Tensor
    value: Any


class PerTensor(Generic[Value]):
    """Keeps a value for each tensor of a GPU, until the tensor is modified or freed; computes it for any other.

    A modification that PyTorch does not count stops the program on the device: the host would have to wait to see it.
    """

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def __call__(self, tensor: Tensor, compute: Callable[[Tensor], Value]) -> Value:
        """The value, computed unless it is known."""
        if torch.compiler.is_compiling() or tensor.is_inference() or tensor.device.type not in ASYNCHRONOUS:
            return compute(tensor)  # where compiled nothing is kept, and tensors of inference mode have no version
        state = tensor._version, tensor.data_ptr(), tensor.shape
        known: _Known | None = self._known.get(tensor)
        if known is None or known.state != state:
            known = self._known[tensor] = _Known(state, tensor.clone(), compute(tensor))
        else:
            torch._assert_async((tensor == known.numbers).all(), CHANGED)  # the host does not wait for it
        value: Value = known.value
        return value
