"""The public functions for JAX: written by `make functions` from `ops/*/op.py`, not by hand."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int32, Int64

from retrograd.core.errors import as_tuple, fields_of
from retrograd.core.jax.arguments import as_array, in_int32, jax_dtype, labels_in_int32
from retrograd.core.jax.checks import checker
from retrograd.core.jax.context import Context
from retrograd.core.jax.op import bind
from retrograd.core.jax.stack import bind_stack
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.unknown import Unknown, no_argument
from retrograd.ops.gated_delta_rule.steps import GatedDeltaRuleWindow
from retrograd.ops.ssd.steps import SsdWindow

from .attention.jax_like import dot_product_attention
from .attention.op import OP as ATTENTION
from .attention.packed import ATTENTION_QKVPACKED
from .causal_conv1d.op import OP as CAUSAL_CONV1D
from .causal_conv1d.update import CAUSAL_CONV1D_UPDATE
from .gated_delta_rule.generation import GATED_DELTA_RULE_PREFILL, GATED_DELTA_RULE_STEP, GATED_DELTA_RULE_UPDATE
from .gated_delta_rule.op import OP as GATED_DELTA_RULE
from .linear.op import OP as LINEAR
from .linear_scan.op import OP as LINEAR_SCAN
from .rms_norm.op import OP as RMS_NORM
from .selective_scan.op import OP as SELECTIVE_SCAN
from .selective_scan.update import SELECTIVE_STATE_UPDATE
from .ssd.generation import SSD_PREFILL, SSD_STEP, SSD_UPDATE
from .ssd.op import OP as SSD

__all__ = [
    "GatedDeltaRuleWindow",
    "SsdWindow",
    "attention",
    "attention_qkvpacked",
    "causal_conv1d",
    "causal_conv1d_update",
    "dot_product_attention",
    "gated_delta_rule",
    "gated_delta_rule_prefill",
    "gated_delta_rule_step",
    "gated_delta_rule_update",
    "linear",
    "linear_scan",
    "rms_norm",
    "selective_scan",
    "selective_state_update",
    "ssd",
    "ssd_prefill",
    "ssd_step",
    "ssd_update",
]

_xp = jax_namespace()

_rms_norm = bind(RMS_NORM)
_linear_scan = bind(LINEAR_SCAN)
_causal_conv1d = bind(CAUSAL_CONV1D)
_check_causal_conv1d_update = checker(CAUSAL_CONV1D_UPDATE.call)
_selective_scan = bind(SELECTIVE_SCAN)
_check_selective_state_update = checker(SELECTIVE_STATE_UPDATE.call)
_ssd = bind(SSD)
_check_ssd_update = checker(SSD_UPDATE.call)
_check_ssd_prefill = checker(SSD_PREFILL.call)
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
    x: Float[Array, "*batch N"],
    weight: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    *,
    bias: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    residual: Float[Array, "*batch N"] | None = ...,
    gate: Float[Array, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    gate_activation: Literal["silu", "sigmoid"] = ...,
    prenorm: Literal[False] = ...,
    out_dtype: Any = ...,
) -> Float[Array, "*batch N"]: ...


@overload
def rms_norm(
    x: Float[Array, "*batch N"],
    weight: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    *,
    bias: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    residual: Float[Array, "*batch N"] | None = ...,
    gate: Float[Array, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    gate_activation: Literal["silu", "sigmoid"] = ...,
    prenorm: Literal[True],
    out_dtype: Any = ...,
) -> tuple[Float[Array, "*batch N"], Float[Array, "*batch N"]]: ...


def rms_norm(
    x: Float[Array, "*batch N"],
    weight: Float[Array, " N"] | Float[Array, "H N"] | None = None,
    *,
    bias: Float[Array, " N"] | Float[Array, "H N"] | None = None,
    residual: Float[Array, "*batch N"] | None = None,
    gate: Float[Array, "*batch N"] | None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    gate_activation: Literal["silu", "sigmoid"] = "silu",
    prenorm: bool = False,
    out_dtype: Any = None,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
    """Root-mean-square normalisation of the last dimension, fused with the residual addition and the gate.

    With s = x + residual and z = gate, and act silu or sigmoid::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * act(z)                  gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * act(z)                        gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's results and gradients do not depend on the rest of its batch.

    It is the same call as `retrograd.rms_norm`, with the same results and errors. On an NVIDIA GPU it launches the same
    kernels; on a CPU or TPU it is plain JAX. For `jax.checkpoint` policies, the arrays that the forward pass saves are
    named `rms_norm_sum` and `rms_norm_rstd`. The function has derivatives of every order, in reverse and in forward
    mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and with more memory.

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
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import rms_norm
        >>> x = jnp.ones((2, 16, 64))
        >>> dx = jax.grad(lambda x: rms_norm(x, jnp.ones(64)).sum())(x)
        >>> dx.shape
        (2, 16, 64)
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
            "out_dtype": jax_dtype("rms_norm", "out_dtype", out_dtype),
        },
    )
    if prenorm and residual is None:
        sum_ = jnp.asarray(x)
    return (y, sum_) if prenorm else y


@overload
def linear_scan(
    a: Float[Array, "#B T #D"] | Complex[Array, "#B T #D"],
    b: Float[Array, "B T D"] | Complex[Array, "B T D"],
    *,
    initial_state: Float[Array, "S D"] | Complex[Array, "S D"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    reverse: bool = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Array, "B T D"] | Complex[Array, "B T D"]: ...


@overload
def linear_scan(
    a: Float[Array, "#B T #D"] | Complex[Array, "#B T #D"],
    b: Float[Array, "B T D"] | Complex[Array, "B T D"],
    *,
    initial_state: Float[Array, "S D"] | Complex[Array, "S D"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    reverse: bool = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Array, "B T D"] | Complex[Array, "B T D"], Float[Array, "S D"] | Complex[Array, "S D"]]: ...


def linear_scan(
    a: Float[Array, "#B T #D"] | Complex[Array, "#B T #D"],
    b: Float[Array, "B T D"] | Complex[Array, "B T D"],
    *,
    initial_state: Float[Array, "S D"] | Complex[Array, "S D"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    reverse: bool = False,
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
    """Linear recurrence along time, each channel by itself.

    ::

        h[t] = a[t] * h[t - 1] + b[t]        h[-1] = initial_state, or 0

    The arithmetic is in float32 (complex64), whatever the dtypes; no logarithms, so decays of exactly 0 and 1 are
    exact. All gradients are bitwise reproducible; a sequence's results and gradients depend neither on its batch nor on
    what it is packed with. The product of a over a few thousand neighbouring steps is formed and must not overflow.

    It is the same call as `retrograd.linear_scan`, with the same results and errors. On an NVIDIA GPU it launches the
    same kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse and in
    forward mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and with more
    memory.

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
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`, within
            `jax.shard_map`; all arrays with steps are then this device's steps.

    Returns:
        h (B, T, D) in the dtype of b; with `return_final_state`, (h, final_state), the state (B, D) in float32, or
        complex64. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4; the gradient is in the op's README.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import linear_scan
        >>> a, b = jnp.full((2, 100, 64), 0.9), jnp.ones((2, 100, 64))
        >>> da = jax.grad(lambda a: linear_scan(a, b).sum())(a)
        >>> da.shape
        (2, 100, 64)
    """
    if unknown:
        raise no_argument(LINEAR_SCAN.call, unknown)
    h, final_state = _linear_scan(
        {"a": a, "b": b, "initial_state": initial_state, "cu_seqlens": in_int32(cu_seqlens)},
        {"reverse": reverse, "return_final_state": return_final_state},
        context,
    )
    return (h, final_state) if return_final_state else h


@overload
def causal_conv1d(
    x: Float[Array, "B T D"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = ...,
    *,
    initial_state: Float[Array, "S D W_minus_1"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    activation: Literal["silu"] | None = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Array, "B T D"]: ...


@overload
def causal_conv1d(
    x: Float[Array, "B T D"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = ...,
    *,
    initial_state: Float[Array, "S D W_minus_1"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    activation: Literal["silu"] | None = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Array, "B T D"], Float[Array, "S D W_minus_1"]]: ...


def causal_conv1d(
    x: Float[Array, "B T D"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = None,
    *,
    initial_state: Float[Array, "S D W_minus_1"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    activation: Literal["silu"] | None = None,
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
    """Depthwise causal convolution along time: each channel has a filter of its own over its last W inputs.

    ::

        y[t] = act(bias + sum over k of weight[:, k] * x[t - (W - 1) + k])

    weight[:, W - 1] belongs to the newest input. Sums are taken in float32, in the order of k. All gradients are
    bitwise reproducible; a row's results and gradients depend neither on its batch nor on what it is packed with.

    It is the same call as `retrograd.causal_conv1d`, with the same results and errors. On an NVIDIA GPU it launches the
    same kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse and in
    forward mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and with more
    memory.

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
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`, within
            `jax.shard_map`; all arrays with steps are then this device's steps.

    Returns:
        y (B, T, D) in the dtype of x; with `return_final_state`, (y, final_state), the state like `initial_state`.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: the short convolution of Mamba (Gu and Dao, 2023).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import causal_conv1d
        >>> x, weight = jnp.ones((2, 16, 64)), jnp.ones((64, 4))
        >>> dx = jax.grad(lambda x: causal_conv1d(x, weight, activation="silu").sum())(x)
        >>> dx.shape
        (2, 16, 64)
    """
    if unknown:
        raise no_argument(CAUSAL_CONV1D.call, unknown)
    y, final_state = _causal_conv1d(
        {"x": x, "weight": weight, "bias": bias, "initial_state": initial_state, "cu_seqlens": in_int32(cu_seqlens)},
        {"activation": activation, "return_final_state": return_final_state},
        context,
    )
    return (y, final_state) if return_final_state else y


def causal_conv1d_update(
    x: Float[Array, "B D"] | Float[Array, "B T D"],
    state: Float[Array, "B D W_minus_1"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
    **unknown: Unknown,
) -> tuple[Float[Array, "B D"] | Float[Array, "B T D"], Float[Array, "B D W_minus_1"]]:
    """One or a few steps of generation: `causal_conv1d` continued from a state, with its gradients.

    The results are bitwise equal to those of the same steps in a longer sequence; in JAX without a kernel, only as far
    as XLA compiles both alike.

    It is the same call as `retrograd.causal_conv1d_update`, with the same results and errors. On an NVIDIA GPU it
    launches the same kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse
    and in forward mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and
    with more memory.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import causal_conv1d_update
        >>> y, state = causal_conv1d_update(jnp.ones((2, 64)), jnp.zeros((2, 64, 3)), jnp.ones((64, 4)))
        >>> y.shape, state.shape
        ((2, 64), (2, 64, 3))
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
    x: Float[Array, "B T D"],
    dt: Float[Array, "B T D"],
    A: Float[Array, "D N"] | Complex[Array, "D N"],
    B: Float[Array, "B T N"]
    | Complex[Array, "B T N"]
    | Float[Array, "B T G N"]
    | Complex[Array, "B T G N"]
    | Float[Array, "D N"]
    | Complex[Array, "D N"],
    C: Float[Array, "B T N"]
    | Complex[Array, "B T N"]
    | Float[Array, "B T K N"]
    | Complex[Array, "B T K N"]
    | Float[Array, "D N"]
    | Complex[Array, "D N"],
    *,
    D: Float[Array, " D"] | None = ...,
    z: Float[Array, "B T D"] | None = ...,
    dt_bias: Float[Array, " D"] | None = ...,
    initial_state: Float[Array, "S D N"] | Complex[Array, "S D N"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Array, "B T D"]: ...


@overload
def selective_scan(
    x: Float[Array, "B T D"],
    dt: Float[Array, "B T D"],
    A: Float[Array, "D N"] | Complex[Array, "D N"],
    B: Float[Array, "B T N"]
    | Complex[Array, "B T N"]
    | Float[Array, "B T G N"]
    | Complex[Array, "B T G N"]
    | Float[Array, "D N"]
    | Complex[Array, "D N"],
    C: Float[Array, "B T N"]
    | Complex[Array, "B T N"]
    | Float[Array, "B T K N"]
    | Complex[Array, "B T K N"]
    | Float[Array, "D N"]
    | Complex[Array, "D N"],
    *,
    D: Float[Array, " D"] | None = ...,
    z: Float[Array, "B T D"] | None = ...,
    dt_bias: Float[Array, " D"] | None = ...,
    initial_state: Float[Array, "S D N"] | Complex[Array, "S D N"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Array, "B T D"], Float[Array, "S D N"] | Complex[Array, "S D N"]]: ...


def selective_scan(
    x: Float[Array, "B T D"],
    dt: Float[Array, "B T D"],
    A: Float[Array, "D N"] | Complex[Array, "D N"],
    B: Float[Array, "B T N"]
    | Complex[Array, "B T N"]
    | Float[Array, "B T G N"]
    | Complex[Array, "B T G N"]
    | Float[Array, "D N"]
    | Complex[Array, "D N"],
    C: Float[Array, "B T N"]
    | Complex[Array, "B T N"]
    | Float[Array, "B T K N"]
    | Complex[Array, "B T K N"]
    | Float[Array, "D N"]
    | Complex[Array, "D N"],
    *,
    D: Float[Array, " D"] | None = None,
    z: Float[Array, "B T D"] | None = None,
    dt_bias: Float[Array, " D"] | None = None,
    initial_state: Float[Array, "S D N"] | Complex[Array, "S D N"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    dt_softplus: bool = False,
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
    """Mamba-1's selective state space: a linear recurrence whose step size, input and output depend on the step.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, for every channel::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]        h[-1] = initial_state, or 0
        y[t] = <C[t], h[t]> + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    The arithmetic and the states are in float32. All gradients are bitwise reproducible; a sequence's results and
    gradients depend neither on its batch nor on what it is packed with. For its backward pass the forward pass saves
    the state of every 2 N-th step, about 2 bytes per channel and step. Gradients of complex arrays follow the
    framework's convention: JAX's are the conjugates of PyTorch's.

    It is the same call as `retrograd.selective_scan`, with the same results and errors. On an NVIDIA GPU it launches
    the same kernels; on a CPU or TPU it is plain JAX. For `jax.checkpoint` policies, the arrays that the forward pass
    saves are named `selective_scan_states`. The function has derivatives of every order, in reverse and in forward
    mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and with more memory.

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
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`, within
            `jax.shard_map`; all arrays with steps are then this device's steps.

    Returns:
        out (B, T, D) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, D, N) in float32
        (complex64). An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), algorithm 2.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import selective_scan
        >>> x, dt, B = jnp.ones((2, 100, 64)), jnp.ones((2, 100, 64)), jnp.ones((2, 100, 16))
        >>> dx = jax.grad(lambda x: selective_scan(x, dt, -jnp.ones((64, 16)), B, B).sum())(x)
        >>> dx.shape
        (2, 100, 64)
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
    return (y, final_state) if return_final_state else y


def selective_state_update(
    state: Float[Array, "S D N"] | Complex[Array, "S D N"],
    x: Float[Array, "B D"],
    dt: Float[Array, "B D"],
    A: Float[Array, "D N"] | Complex[Array, "D N"],
    B: Float[Array, "B N"] | Complex[Array, "B N"] | Float[Array, "B G N"] | Complex[Array, "B G N"],
    C: Float[Array, "B N"] | Complex[Array, "B N"] | Float[Array, "B K N"] | Complex[Array, "B K N"],
    *,
    D: Float[Array, " D"] | None = None,
    z: Float[Array, "B D"] | None = None,
    dt_bias: Float[Array, " D"] | None = None,
    dt_softplus: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Array, "B D"], Float[Array, "S D N"] | Complex[Array, "S D N"]]:
    """One step of `selective_scan`, for generation: (y, the new state). The old state is not modified.

    The results are bitwise equal to those of the same step in a longer sequence (in JAX without a kernel, only as far
    as XLA compiles both alike), and the gradients are those of `selective_scan`. With x in float64, float64 and
    complex128 replace float32 and complex64.

    It is the same call as `retrograd.selective_state_update`, with the same results and errors. On an NVIDIA GPU it
    launches the same kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse
    and in forward mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and
    with more memory.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import selective_state_update
        >>> x, B = jnp.ones((2, 64)), jnp.ones((2, 16))
        >>> y, state = selective_state_update(jnp.zeros((2, 64, 16)), x, x, -jnp.ones((64, 16)), B, B)
        >>> y.shape, state.shape
        ((2, 64), (2, 64, 16))
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
    x: Float[Array, "B T H P"],
    dt: Float[Array, "B T H"],
    A: Float[Array, " H"],
    B: Float[Array, "B T G N"],
    C: Float[Array, "B T G N"],
    *,
    D: Float[Array, " H"] | Float[Array, "H P"] | None = ...,
    z: Float[Array, "B T H P"] | None = ...,
    dt_bias: Float[Array, " H"] | None = ...,
    initial_state: Float[Array, "S H P N"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: tuple[float, float] = ...,
    return_final_state: Literal[False] = ...,
    context: Context | None = ...,
) -> Float[Array, "B T H P"]: ...


@overload
def ssd(
    x: Float[Array, "B T H P"],
    dt: Float[Array, "B T H"],
    A: Float[Array, " H"],
    B: Float[Array, "B T G N"],
    C: Float[Array, "B T G N"],
    *,
    D: Float[Array, " H"] | Float[Array, "H P"] | None = ...,
    z: Float[Array, "B T H P"] | None = ...,
    dt_bias: Float[Array, " H"] | None = ...,
    initial_state: Float[Array, "S H P N"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: tuple[float, float] = ...,
    return_final_state: Literal[True],
    context: Context | None = ...,
) -> tuple[Float[Array, "B T H P"], Float[Array, "S H P N"]]: ...


def ssd(
    x: Float[Array, "B T H P"],
    dt: Float[Array, "B T H"],
    A: Float[Array, " H"],
    B: Float[Array, "B T G N"],
    C: Float[Array, "B T G N"],
    *,
    D: Float[Array, " H"] | Float[Array, "H P"] | None = None,
    z: Float[Array, "B T H P"] | None = None,
    dt_bias: Float[Array, " H"] | None = None,
    initial_state: Float[Array, "S H P N"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_state: bool = False,
    context: Context | None = None,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
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

    It is the same call as `retrograd.ssd`, with the same results and errors. On an NVIDIA GPU it launches the same
    kernels; on a CPU or TPU it is plain JAX. For `jax.checkpoint` policies, the arrays that the forward pass saves are
    named `ssd_states`. The function has derivatives of every order, in reverse and in forward mode. First gradients in
    reverse mode come from the kernels; all others from plain JAX, slower and with more memory.

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
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`, within
            `jax.shard_map`; all arrays with steps are then this device's steps.

    Returns:
        out (B, T, H, P) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, H, P, N) in
        float32. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
    Space Duality (2024), section 6.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import ssd
        >>> x, dt, B = jnp.ones((2, 100, 8, 64)), jnp.ones((2, 100, 8)), jnp.ones((2, 100, 1, 128))
        >>> dx = jax.grad(lambda x: ssd(x, dt, -jnp.ones(8), B, B).sum())(x)
        >>> dx.shape
        (2, 100, 8, 64)
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
    return (y, final_state) if return_final_state else y


def ssd_update(
    state: Float[Array, "B H P N"],
    x: Float[Array, "B H P"],
    dt: Float[Array, "B H"],
    A: Float[Array, " H"],
    B: Float[Array, "B G N"],
    C: Float[Array, "B G N"],
    *,
    D: Float[Array, " H"] | Float[Array, "H P"] | None = None,
    z: Float[Array, "B H P"] | None = None,
    dt_bias: Float[Array, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **unknown: Unknown,
) -> tuple[Float[Array, "B H P"], Float[Array, "B H P N"]]:
    """One step of `ssd`, for generation: (y, the new state). `state` is not modified.

    The plain recurrence, in float32, in array operations that `torch.compile` and `jax.jit` fuse. It rounds differently
    from `ssd`, which multiplies blocks of steps: for the bits of `ssd` use `ssd_step`. No gradient is promised. If x is
    float64, all float32 here is float64.

    It is the same call as `retrograd.ssd_update`, with the same results and errors. It launches no kernels.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_update
        >>> x, dt, B = jnp.ones((2, 8, 64)), jnp.ones((2, 8)), jnp.ones((2, 1, 128))
        >>> y, state = ssd_update(jnp.zeros((2, 8, 64, 128)), x, dt, -jnp.ones(8), B, B)
        >>> y.shape, state.shape
        ((2, 8, 64), (2, 8, 64, 128))
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
    x: Float[Array, "B T H P"],
    dt: Float[Array, "B T H"],
    A: Float[Array, " H"],
    B: Float[Array, "B T G N"],
    C: Float[Array, "B T G N"],
    *,
    D: Float[Array, " H"] | Float[Array, "H P"] | None = None,
    z: Float[Array, "B T H P"] | None = None,
    dt_bias: Float[Array, " H"] | None = None,
    initial_state: Float[Array, "S H P N"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **unknown: Unknown,
) -> tuple[Float[Array, "B T H P"], SsdWindow]:
    """`ssd` on the first steps of a sequence, of which there may be none, and the window from which `ssd_step` goes on.

    It cuts the sequence in two and calls `ssd` on each part; in PyTorch, the kernels for Hopper take both in one call
    if no gradient is recorded. Packed sequences may have any lengths; the window has a row for each of them.

    It is the same call as `retrograd.ssd_prefill`, with the same results and errors. It calls `ssd`: on an NVIDIA GPU
    that launches the same kernels, on a CPU or TPU it is plain JAX. `jax.export` has to be given a number of steps.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_prefill
        >>> x, dt, B = jnp.ones((2, 150, 8, 64)), jnp.ones((2, 150, 8)), jnp.ones((2, 150, 1, 128))
        >>> y, window = ssd_prefill(x, dt, -jnp.ones(8), B, B)
        >>> window.steps.tolist()
        [22, 22]
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
    )


def ssd_step(
    window: SsdWindow,
    x: Float[Array, "B H P"],
    dt: Float[Array, "B H"],
    A: Float[Array, " H"],
    B: Float[Array, "B G N"],
    C: Float[Array, "B G N"],
    *,
    D: Float[Array, " H"] | Float[Array, "H P"] | None = None,
    z: Float[Array, "B H P"] | None = None,
    dt_bias: Float[Array, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **unknown: Unknown,
) -> tuple[Float[Array, "B H P"], SsdWindow]:
    """One step of generation with the bits of training: (y, the window after it).

    y is bitwise equal to that of `ssd` on the whole sequence (in JAX without a kernel, only as far as XLA compiles both
    alike); this costs a call of `ssd` on 64 steps. `ssd_update` is faster, without equal bits. Sequences of a batch
    may be at different steps. Shapes do not depend on the step, so it can be captured in a CUDA graph. Values must be
    finite.

    It is the same call as `retrograd.ssd_step`, with the same results and errors. It calls `ssd`: on an NVIDIA GPU that
    launches the same kernels, on a CPU or TPU it is plain JAX.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_prefill, ssd_step
        >>> x, dt, A, B = jnp.ones((1, 4, 8, 64)), jnp.ones((1, 4, 8)), -jnp.ones(8), jnp.ones((1, 4, 1, 128))
        >>> y, window = ssd_prefill(x, dt, A, B, B)
        >>> y, window = ssd_step(window, x[:, 0], dt[:, 0], A, B[:, 0], B[:, 0])
        >>> int(window.steps[0])
        5
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
    q: Float[Array, "B T G K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T H V"],
    g: Float[Array, "B T H"] | Float[Array, "B T H K"],
    beta: Float[Array, "B T H"],
    *,
    initial_state: Float[Array, "S H V K"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    scale: float | None = ...,
    return_final_state: Literal[False] = ...,
    normalize_qk: bool = ...,
) -> Float[Array, "B T H V"]: ...


@overload
def gated_delta_rule(
    q: Float[Array, "B T G K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T H V"],
    g: Float[Array, "B T H"] | Float[Array, "B T H K"],
    beta: Float[Array, "B T H"],
    *,
    initial_state: Float[Array, "S H V K"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    scale: float | None = ...,
    return_final_state: Literal[True],
    normalize_qk: bool = ...,
) -> tuple[Float[Array, "B T H V"], Float[Array, "S H V K"]]: ...


def gated_delta_rule(
    q: Float[Array, "B T G K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T H V"],
    g: Float[Array, "B T H"] | Float[Array, "B T H K"],
    beta: Float[Array, "B T H"],
    *,
    initial_state: Float[Array, "S H V K"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    scale: float | None = None,
    return_final_state: bool = False,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
    """The gated delta rule: a linear recurrence that moves what its state predicts for a key towards a value.

    For every head, whose state S is (V, K)::

        S    = exp(g[t]) S[t - 1]                               S[-1] = initial_state, or 0
        S[t] = S + beta[t] (v[t] - S k[t]) k[t]^T
        o[t] = scale S[t] q[t]

    With g (B, T, H, K) each channel of K has a decay of its own. Sums and states are in float32; operands of matrix
    products are rounded to the dtype of v. All gradients are bitwise reproducible; a sequence's results and gradients
    depend neither on its batch nor on the sequences packed with it. If v is float64, all float32 here is float64.

    It is the same call as `retrograd.gated_delta_rule`, with the same results and errors. On an NVIDIA GPU it launches
    the same kernels; on a CPU or TPU it is plain JAX. For `jax.checkpoint` policies, the arrays that the forward pass
    saves are named `gated_delta_rule_states` and `gated_delta_rule_inverse` and `gated_delta_rule_scores`. The function
    has derivatives of every order, in reverse and in forward mode. First gradients in reverse mode come from the
    kernels; all others from plain JAX, slower and with more memory.

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
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule
        >>> q, v, beta = jnp.ones((2, 100, 2, 64)), jnp.ones((2, 100, 4, 32)), jnp.ones((2, 100, 4)) / 2
        >>> dv = jax.grad(lambda v: gated_delta_rule(q, q, v, -beta, beta, normalize_qk=True).sum())(v)
        >>> dv.shape
        (2, 100, 4, 32)
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
    return (o, final_state) if return_final_state else o


def gated_delta_rule_update(
    state: Float[Array, "B H V K"],
    q: Float[Array, "B G K"],
    k: Float[Array, "B G K"],
    v: Float[Array, "B H V"],
    g: Float[Array, "B H"] | Float[Array, "B H K"],
    beta: Float[Array, "B H"],
    *,
    scale: float | None = None,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Array, "B H V"], Float[Array, "B H V K"]]:
    """One step of `gated_delta_rule`, for generation: (o, the new state). `state` is not modified.

    The plain recurrence, in float32, in array operations that `torch.compile` and `jax.jit` fuse. It rounds differently
    from `gated_delta_rule`, which multiplies blocks of steps: for its bits use `gated_delta_rule_step`. No gradient is
    promised. If q is float64, all float32 here is float64.

    It is the same call as `retrograd.gated_delta_rule_update`, with the same results and errors. It launches no
    kernels.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule_update
        >>> q, v, beta = jnp.ones((2, 2, 64)), jnp.ones((2, 4, 32)), jnp.ones((2, 4)) / 2
        >>> o, state = gated_delta_rule_update(jnp.zeros((2, 4, 32, 64)), q, q, v, -beta, beta, normalize_qk=True)
        >>> o.shape, state.shape
        ((2, 4, 32), (2, 4, 32, 64))
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
    q: Float[Array, "B T G K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T H V"],
    g: Float[Array, "B T H"] | Float[Array, "B T H K"],
    beta: Float[Array, "B T H"],
    *,
    initial_state: Float[Array, "S H V K"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    scale: float | None = None,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Array, "B T H V"], GatedDeltaRuleWindow]:
    """`gated_delta_rule` on the first steps of a sequence, of which there may be none, and the window from which
    `gated_delta_rule_step` goes on.

    It cuts the sequence in two and calls `gated_delta_rule` on each part. Packed sequences may have any lengths; the
    window has a row for each of them.

    It is the same call as `retrograd.gated_delta_rule_prefill`, with the same results and errors. It calls
    `gated_delta_rule`: on an NVIDIA GPU that launches the same kernels, elsewhere it is plain JAX. `jax.export` has to
    be given a number of steps.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule_prefill
        >>> q, v, beta = jnp.ones((2, 150, 2, 64)), jnp.ones((2, 150, 4, 32)), jnp.ones((2, 150, 4)) / 2
        >>> o, window = gated_delta_rule_prefill(q, q, v, -beta, beta, normalize_qk=True)
        >>> window.steps.tolist()
        [22, 22]
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
    q: Float[Array, "B G K"],
    k: Float[Array, "B G K"],
    v: Float[Array, "B H V"],
    g: Float[Array, "B H"] | Float[Array, "B H K"],
    beta: Float[Array, "B H"],
    *,
    scale: float | None = None,
    normalize_qk: bool = False,
    **unknown: Unknown,
) -> tuple[Float[Array, "B H V"], GatedDeltaRuleWindow]:
    """One step of generation with the bits of training: (o, the window after it).

    o is bitwise equal to that of `gated_delta_rule` on the whole sequence (in JAX without a kernel, only as far as XLA
    compiles both alike); this costs a call of `gated_delta_rule` on 64 steps. `gated_delta_rule_update` is faster,
    without equal bits. Sequences of a batch may be at different steps. Shapes do not depend on the step, so it can be
    captured in a CUDA graph. Values must be finite.

    It is the same call as `retrograd.gated_delta_rule_step`, with the same results and errors. It calls
    `gated_delta_rule`: on an NVIDIA GPU that launches the same kernels, elsewhere it is plain JAX.

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
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule_prefill, gated_delta_rule_step
        >>> q, v, beta = jnp.ones((1, 4, 2, 64)) / 8, jnp.ones((1, 4, 4, 32)), jnp.ones((1, 4, 4)) / 2
        >>> o, window = gated_delta_rule_prefill(q, q, v, -beta, beta)
        >>> o, window = gated_delta_rule_step(window, q[:, 0], q[:, 0], v[:, 0], -beta[:, 0], beta[:, 0])
        >>> int(window.steps[0])
        5
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
    q: Float[Array, "B Q H D"],
    k: Float[Array, "B K G D"],
    v: Float[Array, "B K G V"],
    *,
    bias: Float[Array, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Array, " H"] | Float[Array, "S H"] | None = ...,
    sinks: Float[Array, " H"] | None = ...,
    dropout_seed: int | Int32[Array, ""] | None = ...,
    cu_seqlens_q: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    cu_seqlens_k: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    segment_ids: Int32[Array, "B Q"] | Int64[Array, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[False] = ...,
    backward: Literal["auto", "split", "fused"] = ...,
    context: Context | None = ...,
) -> Float[Array, "B Q H V"]: ...


@overload
def attention(
    q: Float[Array, "B Q H D"],
    k: Float[Array, "B K G D"],
    v: Float[Array, "B K G V"],
    *,
    bias: Float[Array, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Array, " H"] | Float[Array, "S H"] | None = ...,
    sinks: Float[Array, " H"] | None = ...,
    dropout_seed: int | Int32[Array, ""] | None = ...,
    cu_seqlens_q: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    cu_seqlens_k: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    segment_ids: Int32[Array, "B Q"] | Int64[Array, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[True],
    backward: Literal["auto", "split", "fused"] = ...,
    context: Context | None = ...,
) -> tuple[Float[Array, "B Q H V"], Float[Array, "B H Q"]]: ...


def attention(
    q: Float[Array, "B Q H D"],
    k: Float[Array, "B K G D"],
    v: Float[Array, "B K G V"],
    *,
    bias: Float[Array, "#B #H #Q #K"] | None = None,
    alibi_slopes: Float[Array, " H"] | Float[Array, "S H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
    dropout_seed: int | Int32[Array, ""] | None = None,
    cu_seqlens_q: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    cu_seqlens_k: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    segment_ids: Int32[Array, "B Q"] | Int64[Array, "B Q"] | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: Literal["auto", "split", "fused"] = "auto",
    context: Context | None = None,
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
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

    It is the same call as `retrograd.attention`, with the same results and errors. On an NVIDIA GPU it launches the
    same kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse and in
    forward mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and with more
    memory.

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
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`, within
            `jax.shard_map`; all arrays with steps are then this device's steps.

    Returns:
        out (B, Tq, H, V) in the dtype of q; with `return_lse`, (out, lse), the logarithm of the sum of exponentials (B,
        H, Tq) in float32, which has a gradient, too.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2; dropout by Philox4x32-7 of Salmon et al., Parallel Random
    Numbers: As Easy as 1, 2, 3 (2011).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import attention
        >>> q, k = jnp.ones((2, 100, 8, 64)), jnp.ones((2, 100, 2, 64))
        >>> dq = jax.grad(lambda q: attention(q, k, k, causal=True).sum())(q)
        >>> dq.shape
        (2, 100, 8, 64)
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
    return (out, lse) if return_lse else out


@overload
def attention_qkvpacked(
    qkv: Float[Array, "B Q 3 H D"],
    *,
    bias: Float[Array, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Array, " H"] | Float[Array, "S H"] | None = ...,
    sinks: Float[Array, " H"] | None = ...,
    dropout_seed: int | Int32[Array, ""] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    segment_ids: Int32[Array, "B Q"] | Int64[Array, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[False] = ...,
    backward: Literal["auto", "split", "fused"] = ...,
) -> Float[Array, "B Q H D"]: ...


@overload
def attention_qkvpacked(
    qkv: Float[Array, "B Q 3 H D"],
    *,
    bias: Float[Array, "#B #H #Q #K"] | None = ...,
    alibi_slopes: Float[Array, " H"] | Float[Array, "S H"] | None = ...,
    sinks: Float[Array, " H"] | None = ...,
    dropout_seed: int | Int32[Array, ""] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = ...,
    segment_ids: Int32[Array, "B Q"] | Int64[Array, "B Q"] | None = ...,
    causal: bool = ...,
    window: tuple[int, int] | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout_p: float = ...,
    return_lse: Literal[True],
    backward: Literal["auto", "split", "fused"] = ...,
) -> tuple[Float[Array, "B Q H D"], Float[Array, "B H Q"]]: ...


def attention_qkvpacked(
    qkv: Float[Array, "B Q 3 H D"],
    *,
    bias: Float[Array, "#B #H #Q #K"] | None = None,
    alibi_slopes: Float[Array, " H"] | Float[Array, "S H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
    dropout_seed: int | Int32[Array, ""] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | Int64[Array, " S_plus_1"] | None = None,
    segment_ids: Int32[Array, "B Q"] | Int64[Array, "B Q"] | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: Literal["auto", "split", "fused"] = "auto",
    **unknown: Unknown,
) -> Array | tuple[Array, Array]:
    """`attention` of queries, keys and values that a projection left in one array, without a copy of them.

    It is the same call as `retrograd.attention_qkvpacked`, with the same results and errors. On an NVIDIA GPU it
    launches the same kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse
    and in forward mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and
    with more memory.

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
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import attention_qkvpacked
        >>> dqkv = jax.grad(lambda qkv: attention_qkvpacked(qkv, causal=True).sum())(jnp.ones((2, 100, 3, 8, 64)))
        >>> dqkv.shape
        (2, 100, 3, 8, 64)
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
    return (out, lse) if return_lse else out


def linear(
    x: Float[Array, "*batch K"],
    weight: Float[Array, "N K"],
    bias: Float[Array, " N"] | None = None,
    **unknown: Unknown,
) -> Float[Array, "*batch N"]:
    """Rows times the transpose of a matrix of weights: y = x weight^T + bias.

    ::

        y[m, n] = sum over k of x[m, k] weight[n, k] + bias[n]

    The bits of an element of y depend on its row of x, its row of the weight and its bias alone, not on the number of
    rows: products are added in float32 along k, in order and in one sum, the bias last. So a step of generation has the
    bits of training. The same holds for dx. All gradients are bitwise reproducible.

    It is the same call as `retrograd.linear`, with the same results and errors. On an NVIDIA GPU it launches the same
    kernels; on a CPU or TPU it is plain JAX. The function has derivatives of every order, in reverse and in forward
    mode. First gradients in reverse mode come from the kernels; all others from plain JAX, slower and with more memory.

    Args:
        x: (..., K), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        weight: (N, K), the dtype of x, any strides.
        bias: (N,), the dtype of x.

    Returns:
        y (..., N), in the dtype of x.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import linear
        >>> x, weight = jnp.ones((2, 16, 64)), jnp.ones((32, 64))
        >>> dweight = jax.grad(lambda weight: linear(x, weight).sum())(weight)
        >>> dweight.shape
        (32, 64)
    """
    if unknown:
        raise no_argument(LINEAR.call, unknown)
    (y,) = _linear({"x": x, "weight": weight, "bias": bias}, {})
    return y
