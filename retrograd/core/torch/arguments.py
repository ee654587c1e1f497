"""Checks and converts the arguments and options of a call from PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OPTION_TYPES, bad_layout, bad_type, bad_value, check_number, check_option
from ..op import Op
from ..spec import Param
from .launch import DTYPES, concrete, dtype_name

MOST = 2**31 - 1


def check_arguments(op: Op, tensors: Sequence[Any], options: Sequence[Any]) -> None:
    """Raise for arguments that are not strided tensors on one device, and for options of the wrong type.

    A registered operator would report these in other words, or accept them: 1 for True, a `meta` tensor with others.
    """
    check_tensors(op.name, dict(zip(op.arguments, tensors, strict=True)), required=1)
    check_options(op.name, op.options, options)


def check_tensors(op: str, tensors: Mapping[str, Any], required: int = 0) -> None:
    """Raise for arguments that are not strided tensors on one device; the first `required` must be present."""
    present = {name: t for place, (name, t) in enumerate(tensors.items()) if t is not None or place < required}
    first = next(iter(present), "")
    for name, tensor in present.items():
        check_strided(op, name, tensor)
        if tensor.device != present[first].device:
            raise bad_device(op, name, tensor.device, first, present[first].device)


def check_strided(op: str, argument: str, tensor: Any) -> None:
    """Raise for a value that is not a tensor, and for a tensor without strides: sparse, nested, of oneDNN."""
    if not isinstance(tensor, Tensor):
        raise bad_type(op, argument, tensor, "a torch.Tensor")
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise bad_layout(op, argument, layout, "strided")


def bad_device(op: str, argument: str, device: torch.device, first: str, its_device: torch.device) -> ValueError:
    """An argument on another device than the first one."""
    return bad_value(op, f"device of {argument}", str(device), f"{its_device}, the device of {first}")


def check_options(op: str, kinds: Mapping[str, str], values: Sequence[Any]) -> None:
    """Raise for an option of the wrong type; the op's spec checks its value."""
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        if kind in OPTION_TYPES:
            check_option(op, name, concrete(value), kind)


def torch_dtype(op: str, option: str, dtype: Any) -> torch.dtype | None:
    """An option that is a dtype, or None; raises TypeError for anything else."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise bad_type(op, option, dtype, "a torch.dtype or None")
    return dtype


def as_array(op: str, argument: str, value: Any, dtype: str, like: Any) -> Any:
    """A run-time number as a 0-dimensional tensor on the device of `like`; tensors and None are returned unchanged.

    Raises:
        TypeError, ValueError: for a value that is not a number, and for a tensor that requires a gradient.
    """
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise bad_value(op, argument, "a tensor that requires a gradient", "one that does not: it has none")
        return value
    if value is None:
        return None
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        check_number(op, argument, value, dtype)
    return torch.full((), value, dtype=DTYPES[dtype], device=getattr(like, "device", None))


def in_int32(bounds: Any) -> Any:
    """Boundaries in int64, which a sum has, as int32; anything else unchanged, for a later check to report."""
    if not isinstance(bounds, Tensor) or bounds.dtype != torch.int64:
        return bounds
    return bounds.clamp(-1, MOST).int()  # what is out of range stays so


def labels_in_int32(labels: Any) -> Any:
    """Labels in int64 as int32 that tell the same neighbours apart; anything else unchanged."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        return labels
    if labels.ndim == 0:
        return labels.int()
    begins = F.pad(labels.diff(dim=-1) != 0, (1, 0))
    return begins.cumsum(-1).masked_fill(labels < 0, -1).int()


def without_gaps(tensor: Any) -> Any:
    """A dense tensor, copied if need be; values that are not strided tensors unchanged, for a later check to report."""
    strided = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested
    return tensor.contiguous() if strided else tensor


def stay(given: Mapping[str, Tensor], arrays: Mapping[str, Any]) -> bool:
    """Whether what is written to given arrays stays in them: they are dense, and autocast casts no copy."""
    return all(tensor is arrays[name] and tensor.is_contiguous() for name, tensor in given.items())


def params_of(tensors: Mapping[str, Tensor | None]) -> dict[str, Param | None]:
    """Shape and dtype of each argument, None where it is absent."""
    return {
        name: None if tensor is None else Param(tuple(tensor.shape), dtype_name(tensor.dtype))
        for name, tensor in tensors.items()
    }


def in_batches(gradients: Sequence[Tensor | None]) -> bool:
    """Whether gradients are batched: under `torch.vmap`, or by `torch.autograd.grad(is_grads_batched=True)`."""
    if torch._C._functorch.get_dynamic_layer_stack_depth():
        return True
    return any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in gradients)


def resolved(tensor: Tensor) -> Tensor:
    """The tensor with PyTorch's lazy conjugation and negation carried out."""
    # Checking takes less host time than a resolve without effect.
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def absent(like: Tensor) -> Tensor:
    """The empty tensor that an operator returns for an absent result, since it cannot return None."""
    return like.new_empty((0,))
