"""Checks of the registered operators of an op, with the arguments of a case."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.draw import gradients_of, leaves, options, outputs

from .contract import drawn
from .layouts import laid_out

FORWARD = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


class Recorder(TorchDispatchMode):
    """A dispatch mode that records calls of the library's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the call and run it."""
        if func.namespace == "retrograd":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def forward_arguments(info: OpInfo, case: Case, device: str, seed: int, layout: str | None) -> tuple[Any, ...]:
    """The arguments of the forward operator in schema order; all but integer tensors require a gradient."""
    inputs, _ = drawn(info, case, device, seed)
    values: dict[str, Any] = {**options(case), **leaves(laid_out(layout, inputs) if layout else inputs)}
    defaults = inspect.signature(info.torch).parameters
    schema = forward_operator(info)._schema
    return tuple(
        values[argument.name] if argument.name in values else defaults[argument.name].default
        for argument in schema.arguments
    )


def forward_operator(info: OpInfo) -> Any:
    """The registered forward operator."""
    return getattr(torch.ops.retrograd, info.name).default


def check_forward(
    info: OpInfo, case: Case, device: str, seed: int, layout: str | None = None, tests: Sequence[str] = FORWARD
) -> None:
    """`torch.library.opcheck` accepts the forward operator.

    It compares gradients for a broadcast dy with those for a dense one, element by element. On a GPU two different
    kernels may compute these, each within its error budget. For sums of 16-bit inputs in tensor cores, the absolute
    tolerance is 1e-3, for terms of the order of 1; otherwise it is opcheck's own 1e-5.
    """
    arguments = forward_arguments(info, case, device, seed, layout)
    short = any(isinstance(arg, Tensor) and arg.dtype in (torch.bfloat16, torch.float16) for arg in arguments)
    coarse = device == "cuda" and short and info.tensor_core_sums
    tolerances: dict[str, Any] = {"rtol": 1.6e-2, "atol": 1e-3} if coarse else {}
    torch.library.opcheck(forward_operator(info), arguments, test_utils=tuple(tests), **tolerances)


def check_backward(info: OpInfo, case: Case, device: str, seed: int, layout: str | None, alone: bool) -> None:
    """`torch.library.opcheck` accepts the backward operator; with `alone`, for the first argument's gradient only."""
    inputs, gradients = drawn(info, case, device, seed)
    arguments = leaves(laid_out(layout, inputs) if layout else inputs)
    if alone:
        arguments = {
            name: tensor.requires_grad_(place == 0) if tensor.requires_grad else tensor
            for place, (name, tensor) in enumerate(arguments.items())
        }
    with Recorder() as recorder:
        gradients_of(outputs(info.torch, arguments, options(case)), arguments, gradients)
    calls = [(func, args) for func, args in recorder.calls if func is not forward_operator(info)]
    assert len(calls) == 1, f"{info.name}, {case.name}: {len(calls)} calls of a backward operator"
    for func, args in calls:
        detached = [arg.detach() if isinstance(arg, Tensor) else arg for arg in args]
        torch.library.opcheck(func, tuple(detached))
