"""What a binding to PyTorch makes of arguments, and of results that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import OPTION_TYPES, bad_layout, bad_type, bad_value, check_number, check_option
from ..op import Op
from ..spec import Param
from .launch import DTYPES, dtype_name


def concrete(option: Any) -> Any:
    """An option's value: a dtype by its name. While a graph with dynamic shapes is traced, numbers come as symbols."""
    if isinstance(option, torch.SymInt):
        return int(option)
    if isinstance(option, torch.SymFloat):
        return float(option)
    if isinstance(option, tuple):
        return tuple([concrete(item) for item in option])
    return dtype_name(option) if isinstance(option, torch.dtype) else option


def check_arguments(op: Op, tensors: Sequence[Any], options: Sequence[Any]) -> None:
    """Raise for what is no tensor with strides, for tensors on several devices and for options of the wrong type.

    A registered operator would report these in its own words, or take them: 1 for True, a `meta` tensor beside others.
    """
    check_tensors(op.name, dict(zip(op.arguments, tensors, strict=True)), required=1)
    check_options(op.name, op.options, options)


def check_tensors(op: str, tensors: Mapping[str, Any], required: int = 0) -> None:
    """Raise for what is no tensor with strides, and for tensors on several devices; the first ones are required."""
    there = {name: t for place, (name, t) in enumerate(tensors.items()) if t is not None or place < required}
    first = next(iter(there), "")
    for name, tensor in there.items():
        check_strided(op, name, tensor)
        check_device(op, name, tensor.device, first, there[first].device)


def check_strided(op: str, argument: str, tensor: Any) -> None:
    """Raise for what is no tensor, and for a tensor without strides: sparse, nested, of oneDNN."""
    if not isinstance(tensor, Tensor):
        raise bad_type(op, argument, tensor, "a torch.Tensor")
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise bad_layout(op, argument, layout, "strided")


def check_device(op: str, argument: str, device: torch.device, first: str, its_device: torch.device) -> None:
    """Raise for an argument on another device than the first one."""
    if device != its_device:
        raise bad_value(op, f"device of {argument}", str(device), f"{its_device}, the device of {first}")


def check_options(op: str, kinds: Mapping[str, str], values: Sequence[Any]) -> None:
    """Raise for an option of the wrong type; whether its value can be used is for the op to say."""
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        if kind in OPTION_TYPES:
            check_option(op, name, concrete(value), kind)


def torch_dtype(op: str, option: str, dtype: Any) -> torch.dtype | None:
    """An option that is a dtype, or None; raises TypeError for anything else."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise bad_type(op, option, dtype, "a torch.dtype or None")
    return dtype


def as_array(op: str, argument: str, value: Any, dtype: str, like: Any) -> Any:
    """A number that is known at run time alone as a tensor without axes, on the device of another; None stays None.

    Raises:
        TypeError, ValueError: for what is no number, and for a tensor that asks for a gradient.
    """
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise bad_value(op, argument, "a tensor that requires a gradient", "one that does not: it has none")
        return value
    if value is None:
        return None
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return torch.full((), value, dtype=DTYPES[dtype], device=like.device)
    check_number(op, argument, value, dtype)
    return torch.full((), value, dtype=DTYPES[dtype], device=getattr(like, "device", None))


def without_gaps(tensor: Any) -> Any:
    """A tensor copied to where it is dense; what has no strides as it is, to be refused by name."""
    strided = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested
    return tensor.contiguous() if strided else tensor


def params_of(tensors: Mapping[str, Tensor | None]) -> dict[str, Param | None]:
    """Shape and dtype of each argument, None where it is absent."""
    return {
        name: None if tensor is None else Param(tuple(tensor.shape), dtype_name(tensor.dtype))
        for name, tensor in tensors.items()
    }


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
