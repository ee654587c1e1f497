"""What a binding to PyTorch makes of arguments, and of results that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import bad_type, bad_value
from .op import Param
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


def params_of(op: str, tensors: Mapping[str, Any]) -> dict[str, Param | None]:
    """Shape and dtype of each argument, None where it is absent; all have to be on one device."""
    params: dict[str, Param | None] = {}
    first = None
    for name, tensor in tensors.items():
        if tensor is None:
            params[name] = None
            continue
        if not isinstance(tensor, Tensor):
            raise bad_type(op, name, tensor, "a torch.Tensor")
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise bad_type(op, name, tensor, "a strided torch.Tensor")
        first = first or (name, tensor.device)
        if tensor.device != first[1]:
            raise bad_value(op, f"device of {name}", str(tensor.device), f"{first[1]}, the device of {first[0]}")
        params[name] = Param(tuple(tensor.shape), dtype_name(tensor.dtype))
    return params


def resolved(tensor: Tensor) -> Tensor:
    """The tensor as its memory says: conjugations and negations that PyTorch has put off are carried out."""
    # To ask costs the host less than to resolve nothing.
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def absent(like: Tensor) -> Tensor:
    """What an operator returns for a result that is not there, since it returns no None."""
    return like.new_empty((0,))
