"""Peers of causal_conv1d in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from retrograd.opinfo.cases import Case

from . import Function, Native, NotApplicableError, Peer, check_takes, compile_for_one_shape, load

ARGUMENTS = frozenset({"x", "weight", "bias"})
OPTIONS = frozenset({"activation"})


def fla(case: Case) -> Function:
    """flash-linear-attention's Triton kernels, its default."""
    check_takes(case, ARGUMENTS, OPTIONS)
    convolve = load("fla.modules.causal_conv1d", "causal_conv1d")
    activation = case.options.get("activation")
    return lambda inputs: convolve(inputs["x"], inputs["weight"], inputs.get("bias"), activation=activation)[0]


def fla_gluon(case: Case) -> Function:
    """flash-linear-attention's Gluon kernels, which are not its default."""
    check_takes(case, ARGUMENTS, OPTIONS)
    forward = load("fla.modules.causal_conv1d.backends.gluon", "causal_conv1d_fwd_gluon")
    backward = load("fla.modules.causal_conv1d.backends.gluon", "causal_conv1d_bwd_gluon")
    activation = case.options.get("activation")

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            ctx.save_for_backward(x, weight, bias)
            y: Tensor = forward(x=x, weight=weight, bias=bias, residual=None, activation=activation)[0]
            return y

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            x, weight, bias = ctx.saved_tensors
            found = backward(x=x, dy=gradients[0], dht=None, weight=weight, bias=bias, activation=activation)
            return found[:3]

    return lambda inputs: Convolution.apply(inputs["x"], inputs["weight"], inputs.get("bias"))


def load_cuda(case: Case) -> Any:
    """The package's function, for filters that it has kernels for."""
    if case.inputs["weight"].shape[1] > 4:
        raise NotApplicableError("it has filters of 2 to 4 taps")
    return load("causal_conv1d", "causal_conv1d_fn")


def cuda(case: Case) -> Function:
    """The CUDA package causal-conv1d on channels-last tensors, (B, D, T) views of (B, T, D)."""
    check_takes(case, ARGUMENTS, OPTIONS)
    convolve = load_cuda(case)
    activation = case.options.get("activation")

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        x = inputs["x"].transpose(1, 2)
        y: Tensor = convolve(x, inputs["weight"], inputs.get("bias"), activation=activation)
        return y.transpose(1, 2)

    return call


def cuda_rows(case: Case) -> Native:
    """The same package on dense (B, D, T) tensors; the conversion is not timed."""
    check_takes(case, ARGUMENTS, OPTIONS)
    convolve = load_cuda(case)
    activation = case.options.get("activation")
    return Native(
        lambda inputs: convolve(inputs["x"], inputs["weight"], inputs.get("bias"), activation=activation),
        rows_of_time,
        back,
    )


def torch_conv1d(case: Case) -> Native:
    """PyTorch's F.conv1d with a group for each channel, on dense (B, D, T) tensors; the conversion is not timed."""
    check_takes(case, ARGUMENTS, OPTIONS)
    activation = case.options.get("activation")

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        x, weight = inputs["x"], inputs["weight"]
        D, W = weight.shape
        bias = inputs.get("bias")
        if bias is not None:
            bias = bias.to(x.dtype)  # F.conv1d needs one dtype for all arguments
        y = conv1d(x, weight.to(x.dtype)[:, None], bias, padding=W - 1, groups=D)[..., : x.shape[-1]]
        return silu(y) if activation else y

    return Native(call, rows_of_time, back)


def torch_compile(case: Case) -> Function:
    """The sum over shifted inputs in fp32 under torch.compile, compiled for this shape only."""
    check_takes(case, ARGUMENTS, OPTIONS)
    activation = case.options.get("activation")

    def formula(inputs: Mapping[str, Tensor]) -> Tensor:
        x, weight = inputs["x"], inputs["weight"].float()
        W, T = weight.shape[1], x.shape[1]
        padded = torch.nn.functional.pad(x, (0, 0, W - 1, 0))
        y = inputs["bias"].float() if "bias" in inputs else x.new_zeros((), dtype=torch.float32)
        for k in range(W):
            y = y + padded[:, k : k + T].float() * weight[:, k]
        return (silu(y) if activation else y).to(x.dtype)

    return compile_for_one_shape(formula)


def rows_of_time(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with x as a dense (B, D, T) tensor."""
    return {**inputs, "x": inputs["x"].transpose(1, 2).contiguous()}


def back(results: Sequence[Tensor]) -> list[Tensor]:
    """(B, D, T) results as (B, T, D)."""
    return [y.transpose(1, 2) for y in results]


PEERS = (
    Peer("fla", fla, "fla-core"),
    Peer("fla.gluon", fla_gluon, "fla-core"),
    Peer("causal-conv1d", cuda, "causal-conv1d"),
    Peer("causal-conv1d.bdt", cuda_rows, "causal-conv1d"),
    Peer("torch", torch_conv1d, "torch"),
    Peer("torch.compile", torch_compile, "torch", costly=True),
)
