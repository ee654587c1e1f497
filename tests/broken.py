"""Ways to break an op on purpose, and the assertion that a check detects it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.opinfo.info import OpInfo
from retrograd.ops.rms_norm.info import INFO

SEED = 7
Function = Callable[..., Any]


def info(function: Function) -> OpInfo:
    """The `OpInfo` of rms_norm with another PyTorch function."""
    return replace(INFO, torch=function)


def breaks(check: Callable[..., None], function: Function, case: str, **arguments: Any) -> None:
    """Assert that the op passes a check and that the broken op fails it."""
    arguments |= {"device": "cpu", "seed": SEED}
    check(INFO, INFO.case(case), **arguments)
    with pytest.raises(AssertionError):
        check(info(function), INFO.case(case), **arguments)


def scaled_gradient(factor: float) -> Function:
    """An identity whose gradient is scaled."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return dy * factor

    function: Function = Scaled.apply
    return function


def as_if_dense(tensor: Tensor) -> Tensor:
    """The array that a kernel reads if it treats every array as dense."""
    shape = tensor.shape
    return tensor.as_strided(shape, torch.empty(shape, device="meta").stride(), tensor.storage_offset())


class ReadsGradientAsDense(torch.autograd.Function):
    """An identity that reads the incoming gradient as if it were dense."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return as_if_dense(dy)
