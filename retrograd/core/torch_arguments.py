"""What a binding to PyTorch makes of arguments, and of results that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import bad_type
from .torch_launch import dtype_name


def concrete(option: Any) -> Any:
    """An option's value: while a graph with dynamic shapes is traced, numbers come as symbols; a dtype by its name."""
    if isinstance(option, torch.SymInt):
        return int(option)
    if isinstance(option, torch.SymFloat):
        return float(option)
    return dtype_name(option) if isinstance(option, torch.dtype) else option


def not_a_tensor(op: str, arguments: Sequence[str], given: Sequence[Any]) -> TypeError:
    """The error for arguments of which one is no tensor that has strides; the first has to be there."""
    for place, (name, tensor) in enumerate(zip(arguments, given, strict=True)):
        if not isinstance(tensor, Tensor) and (tensor is not None or place == 0):
            return bad_type(op, name, tensor, "a torch.Tensor")
    return bad_type(op, arguments[0], given[0], "a strided torch.Tensor")


def in_batches(gradients: Sequence[Tensor | None]) -> bool:
    """Whether gradients come in batches: under `torch.vmap`, or of `torch.autograd.grad(is_grads_batched=True)`."""
    if torch._C._functorch.get_dynamic_layer_stack_depth():
        return True
    return any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in gradients)


def resolved(tensor: Tensor) -> Tensor:
    """The tensor as its memory says: conjugations and negations that PyTorch has put off are carried out."""
    # To ask costs the host less than to resolve nothing.
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def absent(like: Tensor) -> Tensor:
    """What an operator returns for a result that is not there, since it returns no None."""
    return like.new_empty((0,))
