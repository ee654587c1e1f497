"""The public functions for PyTorch: written by `make functions` from `ops/*/op.py`, not by hand."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from jaxtyping import Complex, Float, Int32, Int64
from torch import Tensor

from retrograd.core.errors import as_tuple, fields_of
from retrograd.core.torch.arguments import as_array, in_int32, labels_in_int32, torch_dtype
from retrograd.core.torch.checks import checker
from retrograd.core.torch.context import Context
from retrograd.core.torch.op import bind, bind_kernels
from retrograd.core.torch.stack import bind_stack
from retrograd.core.torch.xp import torch_namespace
from retrograd.core.unknown import Unknown, no_argument
from retrograd.ops.gated_delta_rule.steps import GatedDeltaRuleWindow
from retrograd.ops.ssd.steps import SsdWindow

from .attention.op import OP as ATTENTION
from .attention.packed import ATTENTION_QKVPACKED
from .attention.torch_step import attention_step_
from .causal_conv1d.op import OP as CAUSAL_CONV1D
from .causal_conv1d.torch_step import causal_conv1d_update_
from .causal_conv1d.update import CAUSAL_CONV1D_UPDATE
from .gated_delta_rule.generation import GATED_DELTA_RULE_PREFILL, GATED_DELTA_RULE_STEP, GATED_DELTA_RULE_UPDATE
from .gated_delta_rule.op import OP as GATED_DELTA_RULE
from .gated_delta_rule.torch_step import gated_delta_rule_step_, gated_delta_rule_update_
from .linear.op import OP as LINEAR
from .linear_scan.op import OP as LINEAR_SCAN
from .rms_norm.op import OP as RMS_NORM
from .selective_scan.op import OP as SELECTIVE_SCAN
from .selective_scan.update import SELECTIVE_STATE_UPDATE
from .ssd.generation import SSD_PREFILL, SSD_STEP, SSD_UPDATE
from .ssd.op import OP as SSD
from .ssd.torch_step import ssd_step_, ssd_update_

__all__ = [
    "GatedDeltaRuleWindow",
    "SsdWindow",
    "attention",
    "attention_qkvpacked",
    "attention_step_",
    "causal_conv1d",
    "causal_conv1d_update",
    "causal_conv1d_update_",
    "gated_delta_rule",
    "gated_delta_rule_prefill",
    "gated_delta_rule_step",
    "gated_delta_rule_step_",
    "gated_delta_rule_update",
    "gated_delta_rule_update_",
    "linear",
    "linear_scan",
    "rms_norm",
    "selective_scan",
    "selective_state_update",
    "ssd",
    "ssd_prefill",
    "ssd_step",
    "ssd_step_",
    "ssd_update",
    "ssd_update_",
]

_xp = torch_namespace()

_rms_norm = bind(RMS_NORM)
_linear_scan = bind(LINEAR_SCAN)
_causal_conv1d = bind(CAUSAL_CONV1D)
_check_causal_conv1d_update = checker(CAUSAL_CONV1D_UPDATE.call)
_selective_scan = bind(SELECTIVE_SCAN)
_check_selective_state_update = checker(SELECTIVE_STATE_UPDATE.call)
_ssd = bind(SSD)
_check_ssd_update = checker(SSD_UPDATE.call)
_check_ssd_prefill = checker(SSD_PREFILL.call)
_kernels_ssd_prefill = bind_kernels(SSD_PREFILL)
_check_ssd_step = checker(SSD_STEP.call)
_gated_delta_rule = bind(GATED_DELTA_RULE)
_check_gated_delta_rule_update = checker(GATED_DELTA_RULE_UPDATE.call)
_check_gated_delta_rule_prefill = checker(GATED_DELTA_RULE_PREFILL.call)
_check_gated_delta_rule_step = checker(GATED_DELTA_RULE_STEP.call)
_attention = bind(ATTENTION)
_attention_qkvpacked = bind_stack(ATTENTION, ATTENTION_QKVPACKED)
_linear = bind(LINEAR)


@overload
def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    residual: Float[Tensor, "*batch N"] | None = ...,
    gate: Float[Tensor, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    gate_activation: Literal["silu", "sigmoid"] = ...,
    prenorm: Literal[False] = ...,
    out_dtype: torch.dtype | None = ...,
) -> Float[Tensor, "*batch N"]: ...


@overload
def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    residual: Float[Tensor, "*batch N"] | None = ...,
    gate: Float[Tensor, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    gate_activation: Literal["silu", "sigmoid"] = ...,
    prenorm: Literal[True],
    out_dtype: torch.dtype | None = ...,
) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N"]]: ...


def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    residual: Float[Tensor, "*batch N"] | None = None,
    gate: Float[Tensor, "*batch N"] | None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    gate_activation: Literal["silu", "sigmoid"] = "silu",
    prenorm: bool = False,
    out_dtype: torch.dtype | None = None,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalisation of the last dimension, fused with the residual addition and the gate.

    With s = x + residual and z = gate, and act silu or sigmoid::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * act(z)                  gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * act(z)                        gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's results and gradients do not depend on the rest of its batch.

    Args:
        x: (..., N), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        weight: (N,), or (H, N) with x (..., H, N): a weight for each head. float32 or the dtype of x.
        bias: like weight.
        residual: like x, of any of the dtypes; added to x first.
        gate: like x, of any of the dtypes.
        eps: added to the mean square.
        weight_offset: added to the weight, in float32; 1.0 for Gemma's norm.
        group_size: columns that are normalised together; all N by default. Must divide N.
        norm_before_gate: gate the output instead of the input.
        gate_activation: act: "silu", or "sigmoid" as in Kimi Linear.
        prenorm: also return s.
        out_dtype: dtype of y; that of x by default.

    Returns:
        y (..., N); with `prenorm`, (y, s), where s has the dtype of the residual. Without a residual, s is a copy of x,
        which may be modified in place.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4; the gate is Mamba-2's (Dao and
    Gu, 2024), with a sigmoid that of Kimi Linear (Kimi Team, 2025).

    Example:
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.ones(64, requires_grad=True)
        >>> y, stream = retrograd.rms_norm(x, weight, residual=torch.randn(2, 16, 64), prenorm=True)
        >>> (y.sum() + stream.sum()).backward()
        >>> weight.grad.shape
        torch.Size([64])
    """
    if unknown:
        raise no_argument(RMS_NORM.call, unknown)
    y, sum_ = _rms_norm(
        {"x": x, "weight": weight, "bias": bias, "residual": residual, "gate": gate},
        {
            "eps": eps,
            "weight_offset": weight_offset,
            "group_size": group_size,
            "norm_before_gate": norm_before_gate,
            "gate_activation": gate_activation,
            "prenorm": prenorm,
            "out_dtype": torch_dtype("rms_norm", "out_dtype", out_dtype),
        },
    )
    if prenorm and residual is None:
        sum_ = x.clone()
    return (y, sum_) if prenorm else y  # type: ignore[return-value]


@overload
def linear_scan(
    a: Float[Tensor, "#B T #D"] | Complex[Tensor, "#B T #D"],
    b: Float[Tensor, "B T D"] | Complex[Tensor, "B T D"],
    *,
    initial_state: Float[Tensor, "S D"] | Complex[Tensor, "S D"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    reverse: bool = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Tensor, "B T D"] | Complex[Tensor, "B T D"]: ...


@overload
def linear_scan(
    a: Float[Tensor, "#B T #D"] | Complex[Tensor, "#B T #D"],
    b: Float[Tensor, "B T D"] | Complex[Tensor, "B T D"],
    *,
    initial_state: Float[Tensor, "S D"] | Complex[Tensor, "S D"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    reverse: bool = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Tensor, "B T D"] | Complex[Tensor, "B T D"], Float[Tensor, "S D"] | Complex[Tensor, "S D"]]: ...


def linear_scan(
    a: Float[Tensor, "#B T #D"] | Complex[Tensor, "#B T #D"],
    b: Float[Tensor, "B T D"] | Complex[Tensor, "B T D"],
    *,
    initial_state: Float[Tensor, "S D"] | Complex[Tensor, "S D"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    reverse: bool = False,
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """Linear recurrence along time, each channel by itself.

    ::

        h[t] = a[t] * h[t - 1] + b[t]        h[-1] = initial_state, or 0

    The arithmetic is in float32 (complex64), whatever the dtypes; no logarithms, so decays of exactly 0 and 1 are
    exact. All gradients are bitwise reproducible; a sequence's results and gradients depend neither on its batch nor on
    what it is packed with. The product of a over a few thousand neighbouring steps is formed and must not overflow.

    Args:
        a: (B, T, D), or of size 1 along B, D or both, for decays that rows or channels share. Any strides.
        b: (B, T, D), any strides. a and b are each float32, bfloat16 or float16, or both are complex64. float64 and
            complex128 run on the portable path.
        initial_state: (B, D), float32 or the dtype of b (complex64 for complex b); zeros by default.
        cu_seqlens: (S + 1,) int32 or int64, for B = 1: b holds S sequences one after another, the i-th from step
            cu_seqlens[i] up to cu_seqlens[i + 1]. States are then (S, D). Results are zero at steps outside of every
            sequence. The numbers must not decrease or exceed T: PyTorch on a CPU, and JAX on a CPU outside of
            `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        reverse: scan from the last step to the first: h[t] = a[t] * h[t + 1] + b[t].
        return_final_state: also return the state after the last step (the first, with `reverse`).
        context: where steps are divided over processes, a `retrograd.distributed.ContextParallel`; all arrays with
            steps are then this process's steps.

    Returns:
        h (B, T, D) in the dtype of b; with `return_final_state`, (h, final_state), the state (B, D) in float32, or
        complex64. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4; the gradient is in the op's README.

    Example:
        >>> import torch, retrograd
        >>> a, b = torch.rand(2, 100, 64, requires_grad=True), torch.randn(2, 100, 64, requires_grad=True)
        >>> h, state = retrograd.linear_scan(a, b, return_final_state=True)
        >>> (h.sum() + state.sum()).backward()
        >>> a.grad.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64]))
    """
    if unknown:
        raise no_argument(LINEAR_SCAN.call, unknown)
    h, final_state = _linear_scan(
        {"a": a, "b": b, "initial_state": initial_state, "cu_seqlens": in_int32(cu_seqlens)},
        {"reverse": reverse, "return_final_state": return_final_state},
        context,
    )
    return (h, final_state) if return_final_state else h  # type: ignore[return-value]


@overload
def causal_conv1d(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = ...,
    *,
    initial_state: Float[Tensor, "S D W_minus_1"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    activation: Literal["silu"] | None = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Tensor, "B T D"]: ...


@overload
def causal_conv1d(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = ...,
    *,
    initial_state: Float[Tensor, "S D W_minus_1"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    activation: Literal["silu"] | None = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "S D W_minus_1"]]: ...


def causal_conv1d(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    initial_state: Float[Tensor, "S D W_minus_1"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    activation: Literal["silu"] | None = None,
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """Depthwise causal convolution along time: each channel has a filter of its own over its last W inputs.

    ::

        y[t] = act(bias + sum over k of weight[:, k] * x[t - (W - 1) + k])

    weight[:, W - 1] belongs to the newest input. Sums are taken in float32, in the order of k. All gradients are
    bitwise reproducible; a row's results and gradients depend neither on its batch nor on what it is packed with.

    `torch.autocast` casts x and initial_state to its dtype.

    Args:
        x: (B, T, D), float32, bfloat16 or float16, any strides, such as those of a transposed (B, D, T) array. float64
            runs on the portable path.
        weight: (D, W), float32 or the dtype of x. Kernels run for W of 2 to 8, the portable path for 1 to 64.
        bias: (D,), float32 or the dtype of x.
        initial_state: (B, D, W - 1) in the dtype of x: the inputs before the first step, oldest first; zeros by
            default.
        cu_seqlens: (S + 1,) int32 or int64, for B = 1: x holds S sequences one after another, the i-th from step
            cu_seqlens[i] up to cu_seqlens[i + 1]. States are then (S, D, W - 1). Results are zero at steps outside of
            every sequence. The numbers must not decrease or exceed T: PyTorch on a CPU, and JAX on a CPU outside of
            `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        activation: "silu" or None.
        return_final_state: also return the last W - 1 inputs, to continue from.
        context: where steps are divided over processes, a `retrograd.distributed.ContextParallel`; all arrays with
            steps are then this process's steps.

    Returns:
        y (B, T, D) in the dtype of x; with `return_final_state`, (y, final_state), the state like `initial_state`.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: the short convolution of Mamba (Gu and Dao, 2023).

    Example:
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.randn(64, 4, requires_grad=True)
        >>> y = retrograd.causal_conv1d(x, weight, activation="silu")
        >>> y.sum().backward()
        >>> weight.grad.shape
        torch.Size([64, 4])
    """
    if unknown:
        raise no_argument(CAUSAL_CONV1D.call, unknown)
    y, final_state = _causal_conv1d(
        {"x": x, "weight": weight, "bias": bias, "initial_state": initial_state, "cu_seqlens": in_int32(cu_seqlens)},
        {"activation": activation, "return_final_state": return_final_state},
        context,
    )
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]


def causal_conv1d_update(
    x: Float[Tensor, "B D"] | Float[Tensor, "B T D"],
    state: Float[Tensor, "B D W_minus_1"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B D"] | Float[Tensor, "B T D"], Float[Tensor, "B D W_minus_1"]]:
    """One or a few steps of generation: `causal_conv1d` continued from a state, with its gradients.

    The results are bitwise equal to those of the same steps in a longer sequence; in JAX without a kernel, only as far
    as XLA compiles both alike.

    `torch.autocast` casts x and state to its dtype.

    Args:
        x: (B, D), or (B, T, D) for T steps.
        state: (B, D, W - 1) in the dtype of x: the previous inputs, oldest first; not modified.
        weight: (D, W), as in `causal_conv1d`.
        bias: (D,), as in `causal_conv1d`.
        activation: "silu" or None.

    Returns:
        (y, new_state): y has the shape of x.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> x, state, weight = torch.randn(2, 64), torch.zeros(2, 64, 3), torch.randn(64, 4)
        >>> y, state = retrograd.causal_conv1d_update(x, state, weight)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 3]))
    """
    if unknown:
        raise no_argument(CAUSAL_CONV1D_UPDATE.call, unknown)
    return CAUSAL_CONV1D_UPDATE.run(
        _xp,
        _causal_conv1d,
        *_check_causal_conv1d_update(
            {"x": x, "state": state, "weight": weight, "bias": bias}, {"activation": activation}
        ),
    )


@overload
def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"] | Complex[Tensor, "D N"],
    B: Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T G N"]
    | Complex[Tensor, "B T G N"]
    | Float[Tensor, "D N"]
    | Complex[Tensor, "D N"],
    C: Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T K N"]
    | Complex[Tensor, "B T K N"]
    | Float[Tensor, "D N"]
    | Complex[Tensor, "D N"],
    *,
    D: Float[Tensor, " D"] | None = ...,
    z: Float[Tensor, "B T D"] | None = ...,
    dt_bias: Float[Tensor, " D"] | None = ...,
    initial_state: Float[Tensor, "S D N"] | Complex[Tensor, "S D N"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Tensor, "B T D"]: ...


@overload
def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"] | Complex[Tensor, "D N"],
    B: Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T G N"]
    | Complex[Tensor, "B T G N"]
    | Float[Tensor, "D N"]
    | Complex[Tensor, "D N"],
    C: Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T K N"]
    | Complex[Tensor, "B T K N"]
    | Float[Tensor, "D N"]
    | Complex[Tensor, "D N"],
    *,
    D: Float[Tensor, " D"] | None = ...,
    z: Float[Tensor, "B T D"] | None = ...,
    dt_bias: Float[Tensor, " D"] | None = ...,
    initial_state: Float[Tensor, "S D N"] | Complex[Tensor, "S D N"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "S D N"] | Complex[Tensor, "S D N"]]: ...


def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"] | Complex[Tensor, "D N"],
    B: Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T G N"]
    | Complex[Tensor, "B T G N"]
    | Float[Tensor, "D N"]
    | Complex[Tensor, "D N"],
    C: Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T K N"]
    | Complex[Tensor, "B T K N"]
    | Float[Tensor, "D N"]
    | Complex[Tensor, "D N"],
    *,
    D: Float[Tensor, " D"] | None = None,
    z: Float[Tensor, "B T D"] | None = None,
    dt_bias: Float[Tensor, " D"] | None = None,
    initial_state: Float[Tensor, "S D N"] | Complex[Tensor, "S D N"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    dt_softplus: bool = False,
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-1's selective state space: a linear recurrence whose step size, input and output depend on the step.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, for every channel::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]        h[-1] = initial_state, or 0
        y[t] = <C[t], h[t]> + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    The arithmetic and the states are in float32. All gradients are bitwise reproducible; a sequence's results and
    gradients depend neither on its batch nor on what it is packed with. For its backward pass the forward pass saves
    the state of every 2 N-th step, about 2 bytes per channel and step. Gradients of complex arrays follow the
    framework's convention: JAX's are the conjugates of PyTorch's.

    `torch.autocast` casts x, B, C and z to its dtype.

    Args:
        x: (B, T, D), float32, bfloat16 or float16, any strides: a transposed (B, D, T) is fine. float64 runs on the
            portable path.
        dt: (B, T, D), like x or float32.
        A: (D, N), float32; at most 256 states. With complex64 A, B and C are complex64, the states too, and y = 2
            Re(sum of C h) (without conjugation) as for one of each pair of conjugate states; portable path only.
        B: (B, T, N), or (B, T, G, N) where channel d uses group d // (D / G); like x or float32. Or constant in time:
            (D, N), float32.
        C: like B, but not necessarily in the same form.
        D: (D,), float32: a skip from x to y.
        z: (B, T, D), like x or float32: a gate.
        dt_bias: (D,), float32, added to dt.
        initial_state: (B, D, N), float32 (complex64 for complex A); zeros by default.
        cu_seqlens: (S + 1,) int32 or int64, for B = 1: x holds S sequences one after another, the i-th from step
            cu_seqlens[i] up to cu_seqlens[i + 1]. States are then (S, D, N). Results are zero at steps outside of every
            sequence. The numbers must not decrease or exceed T: PyTorch on a CPU, and JAX on a CPU outside of
            `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        dt_softplus: whether to apply softplus to dt + dt_bias.
        return_final_state: also return the state after the last step.
        context: where steps are divided over processes, a `retrograd.distributed.ContextParallel`; all arrays with
            steps are then this process's steps.

    Returns:
        out (B, T, D) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, D, N) in float32
        (complex64). An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), algorithm 2.

    Example:
        >>> import torch, retrograd
        >>> x, dt = torch.randn(2, 100, 64, requires_grad=True), torch.randn(2, 100, 64)
        >>> A, B, C = -torch.rand(64, 16), torch.randn(2, 100, 16), torch.randn(2, 100, 16)
        >>> y, state = retrograd.selective_scan(x, dt, A, B, C, dt_softplus=True, return_final_state=True)
        >>> (y.sum() + state.sum()).backward()
        >>> x.grad.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64, 16]))
    """
    if unknown:
        raise no_argument(SELECTIVE_SCAN.call, unknown)
    y, final_state = _selective_scan(
        {
            "x": x,
            "dt": dt,
            "A": A,
            "B": B,
            "C": C,
            "D": D,
            "z": z,
            "dt_bias": dt_bias,
            "initial_state": initial_state,
            "cu_seqlens": in_int32(cu_seqlens),
        },
        {"dt_softplus": dt_softplus, "return_final_state": return_final_state},
        context,
    )
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]


def selective_state_update(
    state: Float[Tensor, "S D N"] | Complex[Tensor, "S D N"],
    x: Float[Tensor, "B D"],
    dt: Float[Tensor, "B D"],
    A: Float[Tensor, "D N"] | Complex[Tensor, "D N"],
    B: Float[Tensor, "B N"] | Complex[Tensor, "B N"] | Float[Tensor, "B G N"] | Complex[Tensor, "B G N"],
    C: Float[Tensor, "B N"] | Complex[Tensor, "B N"] | Float[Tensor, "B K N"] | Complex[Tensor, "B K N"],
    *,
    D: Float[Tensor, " D"] | None = None,
    z: Float[Tensor, "B D"] | None = None,
    dt_bias: Float[Tensor, " D"] | None = None,
    dt_softplus: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B D"], Float[Tensor, "S D N"] | Complex[Tensor, "S D N"]]:
    """One step of `selective_scan`, for generation: (y, the new state). The old state is not modified.

    The results are bitwise equal to those of the same step in a longer sequence (in JAX without a kernel, only as far
    as XLA compiles both alike), and the gradients are those of `selective_scan`. With x in float64, float64 and
    complex128 replace float32 and complex64.

    `torch.autocast` casts x, B, C and z to its dtype.

    Args:
        state: (B, D, N), float32 (complex64 for complex A): zeros at first, or a final state of `selective_scan`.
        x: (B, D), float32, bfloat16, float16 or float64.
        dt: (B, D), like x or float32.
        A: (D, N), float32, or complex64 as in `selective_scan`; at most 256 states.
        B: (B, N), or (B, G, N) where channel d uses group d // (D / G); like x or float32, complex64 for complex A.
        C: like B, but not necessarily in the same form.
        D: (D,), float32: a skip from x to y.
        z: (B, D), like x or float32: a gate.
        dt_bias: (D,), float32, added to dt.
        dt_softplus: whether to apply softplus to dt + dt_bias.

    Returns:
        y (B, D) in the dtype of x, and the new state in the dtype of the old one.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 64, 16), -torch.rand(64, 16)
        >>> x, dt, B, C = torch.randn(2, 64), torch.randn(2, 64), torch.randn(2, 16), torch.randn(2, 16)
        >>> y, state = retrograd.selective_state_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 16]))
    """
    if unknown:
        raise no_argument(SELECTIVE_STATE_UPDATE.call, unknown)
    return SELECTIVE_STATE_UPDATE.run(
        _xp,
        _selective_scan,
        *_check_selective_state_update(
            {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias},
            {"dt_softplus": dt_softplus},
        ),
    )


@overload
def ssd(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = ...,
    z: Float[Tensor, "B T H P"] | None = ...,
    dt_bias: Float[Tensor, " H"] | None = ...,
    initial_state: Float[Tensor, "S H P N"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: tuple[float, float] = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Tensor, "B T H P"]: ...


@overload
def ssd(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = ...,
    z: Float[Tensor, "B T H P"] | None = ...,
    dt_bias: Float[Tensor, " H"] | None = ...,
    initial_state: Float[Tensor, "S H P N"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: tuple[float, float] = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Tensor, "B T H P"], Float[Tensor, "S H P N"]]: ...


def ssd(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = None,
    z: Float[Tensor, "B T H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    initial_state: Float[Tensor, "S H P N"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-2's state space dual: a linear recurrence with one decay a head, computed as matrix products.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, moved into `dt_limit`, for every head,
    whose state h is (P, N)::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]^T      h[-1] = initial_state, or 0
        y[t] = h[t] C[t] + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    Sums and states are in float32; operands of matrix products are rounded to the dtype of x, B and C, or stay in
    float32 where these differ. All gradients are bitwise reproducible; a sequence's results and gradients depend
    neither on its batch nor on the sequences packed with it. A row of the result does not depend on later steps if all
    values are finite; a value that is not may corrupt up to 63 rows before it. The forward pass saves the state of
    every 128th step (256th above N = 128) for the backward pass: for a long sequence, where x, B and C have one dtype,
    at most as many bytes as x has. If x is float64, all float32 here is float64.

    `torch.autocast` casts x, B, C and z to its dtype.

    Args:
        x: (B, T, H, P), float32, bfloat16 or float16, any strides; P up to 256. float64 runs on the portable path.
        dt: (B, T, H), like x or float32.
        A: (H,), float32.
        B: (B, T, G, N), where head h uses group h // (H / G); N up to 256; like x or float32.
        C: as B.
        D: (H,) or (H, P), float32: a skip from x to y.
        z: (B, T, H, P), like x or float32: a gate.
        dt_bias: (H,), float32, added to dt.
        initial_state: (B, H, P, N), float32; zeros by default.
        cu_seqlens: (S + 1,) int32 or int64, for B = 1: x holds S sequences one after another, the i-th from step
            cu_seqlens[i] up to cu_seqlens[i + 1]. States are then (S, H, P, N). Results are zero at steps outside of
            every sequence. The numbers must not decrease or exceed T: PyTorch on a CPU, and JAX on a CPU outside of
            `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        dt_softplus: whether softplus makes delta positive.
        dt_limit: the least and the largest delta; a value outside is clamped, and has no gradient. By default 0 and
            infinity: without `dt_softplus` a negative step becomes 0.
        return_final_state: also return the state after the last step.
        context: where steps are divided over processes, a `retrograd.distributed.ContextParallel`; all arrays with
            steps are then this process's steps.

    Returns:
        out (B, T, H, P) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, H, P, N) in
        float32. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
    Space Duality (2024), section 6.

    Example:
        >>> import torch, retrograd
        >>> x, dt = torch.randn(2, 100, 8, 64, requires_grad=True), torch.randn(2, 100, 8)
        >>> A, B, C = -torch.rand(8), torch.randn(2, 100, 1, 128), torch.randn(2, 100, 1, 128)
        >>> y, state = retrograd.ssd(x, dt, A, B, C, dt_softplus=True, return_final_state=True)
        >>> (y.sum() + state.sum()).backward()
        >>> x.grad.shape, state.shape
        (torch.Size([2, 100, 8, 64]), torch.Size([2, 8, 64, 128]))
    """
    if unknown:
        raise no_argument(SSD.call, unknown)
    y, final_state = _ssd(
        {
            "x": x,
            "dt": dt,
            "A": A,
            "B": B,
            "C": C,
            "D": D,
            "z": z,
            "dt_bias": dt_bias,
            "initial_state": initial_state,
            "cu_seqlens": in_int32(cu_seqlens),
        },
        {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit), "return_final_state": return_final_state},
        context,
    )
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]


def ssd_update(
    state: Float[Tensor, "B H P N"],
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B H P"], Float[Tensor, "B H P N"]]:
    """One step of `ssd`, for generation: (y, the new state). `state` is not modified.

    The plain recurrence, in float32, in array operations that `torch.compile` and `jax.jit` fuse. It rounds differently
    from `ssd`, which multiplies blocks of steps: for the bits of `ssd` use `ssd_step`. No gradient is promised. If x is
    float64, all float32 here is float64.

    `torch.autocast` casts x, B, C and z to its dtype.

    Args:
        state: (B, H, P, N), float32: zeros at first, or a final state of `ssd`.
        x: (B, H, P), float32, bfloat16, float16 or float64.
        dt: (B, H), like x or float32.
        A: as in `ssd`.
        B: (B, G, N), as in `ssd`; like x or float32.
        C: as B.
        D: as in `ssd`.
        z: (B, H, P), like x or float32.
        dt_bias: as in `ssd`.
        dt_softplus: as in `ssd`.
        dt_limit: as in `ssd`.

    Returns:
        y (B, H, P) in the dtype of x, and the new state in the dtype of the old one.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 8, 64, 128), -torch.rand(8)
        >>> x, dt, B, C = torch.randn(2, 8, 64), torch.randn(2, 8), torch.randn(2, 1, 128), torch.randn(2, 1, 128)
        >>> y, state = retrograd.ssd_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 64]), torch.Size([2, 8, 64, 128]))
    """
    if unknown:
        raise no_argument(SSD_UPDATE.call, unknown)
    return SSD_UPDATE.run(
        _xp,
        _ssd,
        *_check_ssd_update(
            {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias},
            {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)},
        ),
    )


def ssd_prefill(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = None,
    z: Float[Tensor, "B T H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    initial_state: Float[Tensor, "S H P N"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B T H P"], SsdWindow]:
    """`ssd` on the first steps of a sequence, of which there may be none, and the window from which `ssd_step` goes on.

    It cuts the sequence in two and calls `ssd` on each part; in PyTorch, the kernels for Hopper take both in one call
    if no gradient is recorded. Packed sequences may have any lengths; the window has a row for each of them.

    `torch.autocast` casts x, B, C and z to its dtype.

    Args:
        x: (B, T, H, P), float32, bfloat16 or float16, any strides; P up to 256. float64 runs on the portable path.
        dt: (B, T, H), like x or float32.
        A: (H,), float32.
        B: (B, T, G, N), where head h uses group h // (H / G); N up to 256; like x or float32.
        C: as B.
        D: (H,) or (H, P), float32: a skip from x to y.
        z: (B, T, H, P), like x or float32: a gate.
        dt_bias: (H,), float32, added to dt.
        initial_state: (B, H, P, N), float32; zeros by default.
        cu_seqlens: (S + 1,) int32 or int64, for B = 1: x holds S sequences one after another, the i-th from step
            cu_seqlens[i] up to cu_seqlens[i + 1]. States are then (S, H, P, N). Results are zero at steps outside of
            every sequence. The numbers must not decrease or exceed T: PyTorch on a CPU, and JAX on a CPU outside of
            `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        dt_softplus: whether softplus makes delta positive.
        dt_limit: the least and the largest delta; a value outside is clamped, and has no gradient. By default 0 and
            infinity: without `dt_softplus` a negative step becomes 0.

    Returns:
        y (B, T, H, P), with the bits of `ssd` on all steps, and an `SsdWindow`.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(2, 200, 8, 64), torch.randn(2, 200, 8), -torch.rand(8)
        >>> B, C = torch.randn(2, 200, 1, 128), torch.randn(2, 200, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :150], dt[:, :150], A, B[:, :150], C[:, :150], dt_softplus=True)
        >>> window.steps
        tensor([22, 22], dtype=torch.int32)
    """
    if unknown:
        raise no_argument(SSD_PREFILL.call, unknown)
    return SSD_PREFILL.run(
        _xp,
        _ssd,
        *_check_ssd_prefill(
            {
                "x": x,
                "dt": dt,
                "A": A,
                "B": B,
                "C": C,
                "D": D,
                "z": z,
                "dt_bias": dt_bias,
                "initial_state": initial_state,
                "cu_seqlens": in_int32(cu_seqlens),
            },
            {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)},
        ),
        _kernels_ssd_prefill,
    )


def ssd_step(
    window: SsdWindow,
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B H P"], SsdWindow]:
    """One step of generation with the bits of training: (y, the window after it).

    y is bitwise equal to that of `ssd` on the whole sequence (in JAX without a kernel, only as far as XLA compiles both
    alike); this costs a call of `ssd` on 64 steps. `ssd_update` is faster, without equal bits. Sequences of a batch
    may be at different steps. Shapes do not depend on the step, so it can be captured in a CUDA graph. Values must be
    finite.

    `torch.autocast` casts x, B, C, z, window.x and window.B to its dtype.

    Args:
        window: from `ssd_prefill` or the step before; x, dt and B have the dtypes of those in it. A, D, dt_bias and
            options must be the same in all these calls.
        x: (B, H, P), float32, bfloat16, float16 or float64.
        dt: (B, H), like x or float32.
        A: as in `ssd`.
        B: (B, G, N), as in `ssd`; like x or float32.
        C: as B.
        D: as in `ssd`.
        z: (B, H, P), like x or float32.
        dt_bias: as in `ssd`.
        dt_softplus: as in `ssd`.
        dt_limit: as in `ssd`.

    Returns:
        y (B, H, P) in the dtype of x, and the new window.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(1, 5, 8, 64), torch.randn(1, 5, 8), -torch.rand(8)
        >>> B, C = torch.randn(1, 5, 1, 128), torch.randn(1, 5, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], dt_softplus=True)
        >>> last, window = retrograd.ssd_step(window, x[:, 4], dt[:, 4], A, B[:, 4], C[:, 4], dt_softplus=True)
        >>> bool((last == retrograd.ssd(x, dt, A, B, C, dt_softplus=True)[:, 4]).all())
        True
    """
    if unknown:
        raise no_argument(SSD_STEP.call, unknown)
    return SSD_STEP.run(
        _xp,
        _ssd,
        *_check_ssd_step(
            {
                **fields_of("ssd_step", "window", window, SsdWindow),
                "x": x,
                "dt": dt,
                "A": A,
                "B": B,
                "C": C,
                "D": D,
                "z": z,
                "dt_bias": dt_bias,
            },
            {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)},
        ),
    )


@overload
def gated_delta_rule(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    *,
    initial_state: Float[Tensor, "S H V K"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    scale: float | None = ...,
    return_final_state: Literal[False] = ...,
    normalize_qk: bool = ...,
) -> Float[Tensor, "B T H V"]: ...


@overload
def gated_delta_rule(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    *,
    initial_state: Float[Tensor, "S H V K"] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    scale: float | None = ...,
    return_final_state: Literal[True],
    normalize_qk: bool = ...,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H V K"]]: ...


def gated_delta_rule(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    *,
    initial_state: Float[Tensor, "S H V K"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    scale: float | None = None,
    return_final_state: bool = False,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """The gated delta rule: a linear recurrence that moves what its state predicts for a key towards a value.

    For every head, whose state S is (V, K)::

        S    = exp(g[t]) S[t - 1]                               S[-1] = initial_state, or 0
        S[t] = S + beta[t] (v[t] - S k[t]) k[t]^T
        o[t] = scale S[t] q[t]

    With g (B, T, H, K) each channel of K has a decay of its own. Sums and states are in float32; operands of matrix
    products are rounded to the dtype of v. All gradients are bitwise reproducible; a sequence's results and gradients
    depend neither on its batch nor on the sequences packed with it. If v is float64, all float32 here is float64.

    `torch.autocast` casts q, k and v to its dtype.

    Args:
        q: (B, T, G, K), float32, bfloat16 or float16, any strides, where head h uses key head h // (H / G); K up to
            256. float64 runs on the portable path.
        k: as q; of norm 1, or smaller, unless `normalize_qk` makes it so.
        v: (B, T, H, V), in the dtype of q; V up to 256.
        g: (B, T, H), or (B, T, H, K): log decays, at most 0; in the dtype of q or float32.
        beta: (B, T, H), from 0 to 2: how far; as g.
        initial_state: (B, H, V, K), float32; zeros by default.
        cu_seqlens: (S + 1,) int32 or int64, for B = 1: q holds S sequences one after another, the i-th from step
            cu_seqlens[i] up to cu_seqlens[i + 1]. States are then (S, H, V, K). Results are zero at steps outside of
            every sequence. The numbers must not decrease or exceed T: PyTorch on a CPU, and JAX on a CPU outside of
            `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        scale: factor of the results; 1 / sqrt(K) by default.
        return_final_state: also return the state after the last step.
        normalize_qk: divide q and k by sqrt(sum over K of their squares + 1e-6).

    Returns:
        o (B, T, H, V) in the dtype of v; with `return_final_state`, (o, final_state), the state (B, H, V, K) in
        float32. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule (2024), equation 10;
    with a decay for each channel, Kimi Team, Kimi Linear (2025), equation 1.

    Example:
        >>> import torch, retrograd
        >>> q, k = torch.randn(2, 100, 2, 64), torch.randn(2, 100, 2, 64)
        >>> v, g = torch.randn(2, 100, 4, 32, requires_grad=True), -torch.rand(2, 100, 4)
        >>> o, state = retrograd.gated_delta_rule(
        ...     q, k, v, g, torch.rand(2, 100, 4), normalize_qk=True, return_final_state=True
        ... )
        >>> (o.sum() + state.sum()).backward()
        >>> v.grad.shape, state.shape
        (torch.Size([2, 100, 4, 32]), torch.Size([2, 4, 32, 64]))
    """
    if unknown:
        raise no_argument(GATED_DELTA_RULE.call, unknown)
    o, final_state = _gated_delta_rule(
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "initial_state": initial_state,
            "cu_seqlens": in_int32(cu_seqlens),
        },
        {"scale": scale, "return_final_state": return_final_state, "normalize_qk": normalize_qk},
    )
    return (o, final_state) if return_final_state else o  # type: ignore[return-value]


def gated_delta_rule_update(
    state: Float[Tensor, "B H V K"],
    q: Float[Tensor, "B G K"],
    k: Float[Tensor, "B G K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H"] | Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    *,
    scale: float | None = None,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B H V"], Float[Tensor, "B H V K"]]:
    """One step of `gated_delta_rule`, for generation: (o, the new state). `state` is not modified.

    The plain recurrence, in float32, in array operations that `torch.compile` and `jax.jit` fuse. It rounds differently
    from `gated_delta_rule`, which multiplies blocks of steps: for its bits use `gated_delta_rule_step`. No gradient is
    promised. If q is float64, all float32 here is float64.

    `torch.autocast` casts q, k and v to its dtype.

    Args:
        state: (B, H, V, K), float32: zeros at first, or a final state of `gated_delta_rule`.
        q: (B, G, K), float32, bfloat16, float16 or float64.
        k: as q.
        v: (B, H, V), in the dtype of q.
        g: (B, H) or (B, H, K), in the dtype of q or float32.
        beta: (B, H), as g.
        scale: as in `gated_delta_rule`.
        normalize_qk: as in `gated_delta_rule`.

    Returns:
        o (B, H, V) in the dtype of v, and the new state in the dtype of the old one.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> state, q, k = torch.zeros(2, 4, 32, 64), torch.randn(2, 2, 64), torch.randn(2, 2, 64)
        >>> v, g, beta = torch.randn(2, 4, 32), -torch.rand(2, 4), torch.rand(2, 4)
        >>> o, state = retrograd.gated_delta_rule_update(state, q, k, v, g, beta, normalize_qk=True)
        >>> o.shape, state.shape
        (torch.Size([2, 4, 32]), torch.Size([2, 4, 32, 64]))
    """
    if unknown:
        raise no_argument(GATED_DELTA_RULE_UPDATE.call, unknown)
    return GATED_DELTA_RULE_UPDATE.run(
        _xp,
        _gated_delta_rule,
        *_check_gated_delta_rule_update(
            {"state": state, "q": q, "k": k, "v": v, "g": g, "beta": beta},
            {"scale": scale, "normalize_qk": normalize_qk},
        ),
    )


def gated_delta_rule_prefill(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    *,
    initial_state: Float[Tensor, "S H V K"] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    scale: float | None = None,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B T H V"], GatedDeltaRuleWindow]:
    """`gated_delta_rule` on the first steps of a sequence, of which there may be none, and the window from which
    `gated_delta_rule_step` goes on.

    It cuts the sequence in two and calls `gated_delta_rule` on each part. Packed sequences may have any lengths; the
    window has a row for each of them.

    `torch.autocast` casts q, k and v to its dtype.

    Args:
        q: (B, T, G, K), as in `gated_delta_rule`.
        k: as in `gated_delta_rule`.
        v: (B, T, H, V), in the dtype of q.
        g: as in `gated_delta_rule`.
        beta: as in `gated_delta_rule`.
        initial_state: as in `gated_delta_rule`.
        cu_seqlens: as in `gated_delta_rule`.
        scale: as in `gated_delta_rule`.
        normalize_qk: as in `gated_delta_rule`.

    Returns:
        o (B, T, H, V), with the bits of `gated_delta_rule` on all steps, and a `GatedDeltaRuleWindow`.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> q, k, v = torch.randn(2, 150, 2, 64), torch.randn(2, 150, 2, 64), torch.randn(2, 150, 4, 32)
        >>> g, beta = -torch.rand(2, 150, 4), torch.rand(2, 150, 4)
        >>> o, window = retrograd.gated_delta_rule_prefill(q, k, v, g, beta, normalize_qk=True)
        >>> window.steps
        tensor([22, 22], dtype=torch.int32)
    """
    if unknown:
        raise no_argument(GATED_DELTA_RULE_PREFILL.call, unknown)
    return GATED_DELTA_RULE_PREFILL.run(
        _xp,
        _gated_delta_rule,
        *_check_gated_delta_rule_prefill(
            {
                "q": q,
                "k": k,
                "v": v,
                "g": g,
                "beta": beta,
                "initial_state": initial_state,
                "cu_seqlens": in_int32(cu_seqlens),
            },
            {"scale": scale, "normalize_qk": normalize_qk},
        ),
    )


def gated_delta_rule_step(
    window: GatedDeltaRuleWindow,
    q: Float[Tensor, "B G K"],
    k: Float[Tensor, "B G K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H"] | Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    *,
    scale: float | None = None,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Tensor, "B H V"], GatedDeltaRuleWindow]:
    """One step of generation with the bits of training: (o, the window after it).

    o is bitwise equal to that of `gated_delta_rule` on the whole sequence (in JAX without a kernel, only as far as XLA
    compiles both alike); this costs a call of `gated_delta_rule` on 64 steps. `gated_delta_rule_update` is faster,
    without equal bits. Sequences of a batch may be at different steps. Shapes do not depend on the step, so it can be
    captured in a CUDA graph. Values must be finite.

    `torch.autocast` casts q, k, v, window.k and window.v to its dtype.

    Args:
        window: from `gated_delta_rule_prefill` or the step before; k, v, g and beta have the dtypes of those in it.
            Options must be the same in all these calls.
        q: (B, G, K), float32, bfloat16, float16 or float64.
        k: as q.
        v: (B, H, V), in the dtype of q.
        g: (B, H) or (B, H, K), in the dtype of q or float32.
        beta: (B, H), as g.
        scale: as in `gated_delta_rule`.
        normalize_qk: as in `gated_delta_rule`.

    Returns:
        o (B, H, V) in the dtype of v, and the new window.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> q, k, v = torch.randn(1, 5, 2, 64) / 8, torch.randn(1, 5, 2, 64) / 8, torch.randn(1, 5, 4, 32)
        >>> arrays = q, k, v, -torch.rand(1, 5, 4), torch.rand(1, 5, 4)
        >>> o, window = retrograd.gated_delta_rule_prefill(*(x[:, :4] for x in arrays))
        >>> last, window = retrograd.gated_delta_rule_step(window, *(x[:, 4] for x in arrays))
        >>> bool((last == retrograd.gated_delta_rule(*arrays)[:, 4]).all())
        True
    """
    if unknown:
        raise no_argument(GATED_DELTA_RULE_STEP.call, unknown)
    return GATED_DELTA_RULE_STEP.run(
        _xp,
        _gated_delta_rule,
        *_check_gated_delta_rule_step(
            {
                **fields_of("gated_delta_rule_step", "window", window, GatedDeltaRuleWindow),
                "q": q,
                "k": k,
                "v": v,
                "g": g,
                "beta": beta,
            },
            {"scale": scale, "normalize_qk": normalize_qk},
        ),
    )


@overload
def attention(
    q: Float[Tensor, "B Q H D"],
    k: Float[Tensor, "B K G D"],
    v: Float[Tensor, "B K G V"],
    *,
    bias: Float[Tensor, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Tensor, " H"] | Float[Tensor, "S H"] | None = ...,
    sinks: Float[Tensor, " H"] | None = ...,
    dropout_seed: int | Int32[Tensor, ""] | None = ...,
    cu_seqlens_q: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    cu_seqlens_k: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    segment_ids: Int32[Tensor, "B Q"] | Int64[Tensor, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[False] = ...,
    backward: Literal["auto", "split", "fused"] = ...,
    context: Context | None = ...,
) -> Float[Tensor, "B Q H V"]: ...


@overload
def attention(
    q: Float[Tensor, "B Q H D"],
    k: Float[Tensor, "B K G D"],
    v: Float[Tensor, "B K G V"],
    *,
    bias: Float[Tensor, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Tensor, " H"] | Float[Tensor, "S H"] | None = ...,
    sinks: Float[Tensor, " H"] | None = ...,
    dropout_seed: int | Int32[Tensor, ""] | None = ...,
    cu_seqlens_q: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    cu_seqlens_k: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    segment_ids: Int32[Tensor, "B Q"] | Int64[Tensor, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[True],
    backward: Literal["auto", "split", "fused"] = ...,
    context: Context | None = ...,
) -> tuple[Float[Tensor, "B Q H V"], Float[Tensor, "B H Q"]]: ...


def attention(
    q: Float[Tensor, "B Q H D"],
    k: Float[Tensor, "B K G D"],
    v: Float[Tensor, "B K G V"],
    *,
    bias: Float[Tensor, "#B #H #Q #K"] | None = None,
    alibi_slopes: Float[Tensor, " H"] | Float[Tensor, "S H"] | None = None,
    sinks: Float[Tensor, " H"] | None = None,
    dropout_seed: int | Int32[Tensor, ""] | None = None,
    cu_seqlens_q: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    cu_seqlens_k: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    segment_ids: Int32[Tensor, "B Q"] | Int64[Tensor, "B Q"] | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: Literal["auto", "split", "fused"] = "auto",
    context: Context | None = None,
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention with every mask and option that training needs.

    With head h of q, and group g = h // (H / G) of k and v, for query i and key j::

        x[i, j] = scale <q[i], k[j]>                                        softcap tanh(x / softcap) with a softcap
        x[i, j] += bias[i, j] - alibi_slopes[h] |i' - j|                    i' = i + Tk - Tq
        p[i, j] = exp(x[i, j] - lse[i]) for visible j, else 0
        lse[i] = log(sum of exp(x[i, j]) over visible j, + exp(sinks[h]))
        out[i] = sum over j of p[i, j] v[j]                                 p after dropout

    A key is visible if it lies in the query's sequence, with `causal` if j <= i', and with `window` (left, right) if
    i' - left <= j <= i' + right: the last query is aligned with the last key of its sequence. A query that sees no key
    has zeros as its result and gradients, and lse -inf without sinks. Sums are taken in float32. All gradients are
    bitwise reproducible; a query's result depends on nothing but its own sequence up to its last visible key.

    `torch.autocast` casts q, k and v to its dtype.

    Args:
        q: (B, Tq, H, D), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        k: (B, Tk, G, D) in the dtype of q; G divides H.
        v: (B, Tk, G, V) in the dtype of q.
        bias: (B, H, Tq, Tk), each axis also of size 1; like q or float32. Its gradient has its shape: axes of size 1
            are summed in a fixed order.
        alibi_slopes: (H,), or (B, H), float32.
        sinks: (H,), float32: the logarithm of what each head adds to the sum of exponentials.
        dropout_seed: the seed of the dropout; needed where dropout_p is not 0.
        cu_seqlens_q: (S + 1,) int32 or int64, for B = 1: q holds S sequences one after another, the i-th from step
            cu_seqlens_q[i] up to cu_seqlens_q[i + 1]. alibi_slopes is then (H,) or (S, H). Results are zero at steps
            outside of every sequence. The numbers must not decrease or exceed Tq: PyTorch on a CPU, and JAX on a CPU
            outside of `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        cu_seqlens_k: (S + 1,) int32 or int64, for B = 1: each of k and v holds S sequences one after another, the i-th
            from step cu_seqlens_k[i] up to cu_seqlens_k[i + 1]. alibi_slopes is then (H,) or (S, H). Results are zero
            at steps outside of every sequence. The numbers must not decrease or exceed Tk: PyTorch on a CPU, and JAX on
            a CPU outside of `jax.jit`, check this; elsewhere the results for such numbers are undefined.
        segment_ids: (B, T) int32 or int64, for Tq = Tk = T and without cu_seqlens: a sequence is a run of steps of a
            row with one id, which is not negative; another run begins where the id differs from that of the step
            before, and with each row. Results and gradients are zero at steps with a negative id. The same as packed
            sequences, and on a GPU the same bits; alibi_slopes is (H,).
        causal: whether a query sees no key after its own position; the last query is at the last key.
        window: (left, right), how many keys a query sees before and after its own position; -1 for all. The last query
            is at the last key.
        scale: factor of the products; 1 / sqrt(D) by default.
        softcap: bound of the scaled products.
        dropout_p: share of the probabilities that are dropped, in steps of 2^-16.
        return_lse: also return lse.
        backward: the backward algorithm of the kernels: "split" computes dq apart from dk and dv, without a workspace;
            "fused" computes all in one kernel, which adds up dq in a fixed order, in a workspace of float32; "auto" is
            the faster one. With segment_ids "fused" exists on Hopper GPUs alone, in 16 bits and for heads of 32 to 128
            channels; elsewhere "split" runs in its place.
        context: where steps are divided over processes, a `retrograd.distributed.ContextParallel`; all arrays with
            steps are then this process's steps.

    Returns:
        out (B, Tq, H, V) in the dtype of q; with `return_lse`, (out, lse), the logarithm of the sum of exponentials (B,
        H, Tq) in float32, which has a gradient, too.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2; dropout by Philox4x32-7 of Salmon et al., Parallel Random
    Numbers: As Easy as 1, 2, 3 (2011).

    Example:
        >>> import torch, retrograd
        >>> q, k = torch.randn(2, 100, 8, 64, requires_grad=True), torch.randn(2, 100, 2, 64)
        >>> out, lse = retrograd.attention(q, k, k, causal=True, window=(31, 0), return_lse=True)
        >>> (out.sum() + lse.sum()).backward()
        >>> out.shape, lse.shape
        (torch.Size([2, 100, 8, 64]), torch.Size([2, 8, 100]))
    """
    if unknown:
        raise no_argument(ATTENTION.call, unknown)
    out, lse = _attention(
        {
            "q": q,
            "k": k,
            "v": v,
            "bias": bias,
            "alibi_slopes": alibi_slopes,
            "sinks": sinks,
            "dropout_seed": as_array("attention", "dropout_seed", dropout_seed, "int32", q),
            "cu_seqlens_q": in_int32(cu_seqlens_q),
            "cu_seqlens_k": in_int32(cu_seqlens_k),
            "segment_ids": labels_in_int32(segment_ids),
        },
        {
            "causal": causal,
            "window": as_tuple(window),
            "scale": scale,
            "softcap": softcap,
            "dropout_p": dropout_p,
            "return_lse": return_lse,
            "backward": backward,
        },
        context,
    )
    return (out, lse) if return_lse else out  # type: ignore[return-value]


@overload
def attention_qkvpacked(
    qkv: Float[Tensor, "B Q 3 H D"],
    *,
    bias: Float[Tensor, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Tensor, " H"] | Float[Tensor, "S H"] | None = ...,
    sinks: Float[Tensor, " H"] | None = ...,
    dropout_seed: int | Int32[Tensor, ""] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    segment_ids: Int32[Tensor, "B Q"] | Int64[Tensor, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[False] = ...,
    backward: Literal["auto", "split", "fused"] = ...,
) -> Float[Tensor, "B Q H D"]: ...


@overload
def attention_qkvpacked(
    qkv: Float[Tensor, "B Q 3 H D"],
    *,
    bias: Float[Tensor, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Tensor, " H"] | Float[Tensor, "S H"] | None = ...,
    sinks: Float[Tensor, " H"] | None = ...,
    dropout_seed: int | Int32[Tensor, ""] | None = ...,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = ...,
    segment_ids: Int32[Tensor, "B Q"] | Int64[Tensor, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[True],
    backward: Literal["auto", "split", "fused"] = ...,
) -> tuple[Float[Tensor, "B Q H D"], Float[Tensor, "B H Q"]]: ...


def attention_qkvpacked(
    qkv: Float[Tensor, "B Q 3 H D"],
    *,
    bias: Float[Tensor, "#B #H #Q #K"] | None = None,
    alibi_slopes: Float[Tensor, " H"] | Float[Tensor, "S H"] | None = None,
    sinks: Float[Tensor, " H"] | None = None,
    dropout_seed: int | Int32[Tensor, ""] | None = None,
    cu_seqlens: Int32[Tensor, " S_plus_1"] | Int64[Tensor, " S_plus_1"] | None = None,
    segment_ids: Int32[Tensor, "B Q"] | Int64[Tensor, "B Q"] | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: Literal["auto", "split", "fused"] = "auto",
    **unknown: Unknown,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of queries, keys and values that a projection left in one array, without a copy of them.

    `torch.autocast` casts qkv to its dtype.

    Args:
        qkv: (B, T, 3, H, D): queries, keys and values. Its gradient is one array, too: in PyTorch on a GPU the kernels
            write it without a copy; in a compiled graph, under transforms and in JAX it is put together from three.
        bias: as in `attention`.
        alibi_slopes: as in `attention`.
        sinks: as in `attention`.
        dropout_seed: as in `attention`.
        cu_seqlens: (S + 1,) int32 or int64: the boundaries of queries and keys.
        segment_ids: as in `attention`.
        causal: as in `attention`.
        window: as in `attention`.
        scale: as in `attention`.
        softcap: as in `attention`.
        dropout_p: as in `attention`.
        return_lse: as in `attention`.
        backward: as in `attention`.

    Returns:
        out (B, T, H, D); with `return_lse`, (out, lse).

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> qkv = torch.randn(2, 100, 3, 8, 64, requires_grad=True)
        >>> retrograd.attention_qkvpacked(qkv, causal=True).sum().backward()
        >>> qkv.grad.shape
        torch.Size([2, 100, 3, 8, 64])
    """
    if unknown:
        raise no_argument(ATTENTION_QKVPACKED.call, unknown)
    out, lse = _attention_qkvpacked(
        {
            "qkv": qkv,
            "bias": bias,
            "alibi_slopes": alibi_slopes,
            "sinks": sinks,
            "dropout_seed": as_array("attention_qkvpacked", "dropout_seed", dropout_seed, "int32", qkv),
            "cu_seqlens": in_int32(cu_seqlens),
            "segment_ids": labels_in_int32(segment_ids),
        },
        {
            "causal": causal,
            "window": as_tuple(window),
            "scale": scale,
            "softcap": softcap,
            "dropout_p": dropout_p,
            "return_lse": return_lse,
            "backward": backward,
        },
    )
    return (out, lse) if return_lse else out  # type: ignore[return-value]


def linear(
    x: Float[Tensor, "*batch K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None = None,
    **unknown: Unknown,
) -> Float[Tensor, "*batch N"]:
    """Rows times the transpose of a matrix of weights: y = x weight^T + bias.

    ::

        y[m, n] = sum over k of x[m, k] weight[n, k] + bias[n]

    The bits of an element of y depend on its row of x, its row of the weight and its bias alone, not on the number of
    rows: products are added in float32 along k, in order and in one sum, the bias last. So a step of generation has the
    bits of training. The same holds for dx. All gradients are bitwise reproducible.

    `torch.autocast` casts x, weight and bias to its dtype.

    Args:
        x: (..., K), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        weight: (N, K), the dtype of x, any strides.
        bias: (N,), the dtype of x.

    Returns:
        y (..., N), in the dtype of x.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> x, weight = torch.randn(2, 16, 64), torch.randn(32, 64, requires_grad=True)
        >>> y = retrograd.linear(x, weight)
        >>> y.sum().backward()
        >>> y.shape, weight.grad.shape
        (torch.Size([2, 16, 32]), torch.Size([32, 64]))
        >>> torch.equal(retrograd.linear(x[:, :1], weight), y[:, :1])
        True
    """
    if unknown:
        raise no_argument(LINEAR.call, unknown)
    (y,) = _linear({"x": x, "weight": weight, "bias": bias}, {})
    return y  # type: ignore[return-value]
