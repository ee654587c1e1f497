"""The public functions for JAX: written by `make functions` from `ops/*/op.py`, not by hand."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int32

from retrograd.core.jax.arguments import jax_dtype
from retrograd.core.jax.op import bind

from .linear_scan.op import OP as LINEAR_SCAN
from .rms_norm.op import OP as RMS_NORM

__all__ = ["linear_scan", "rms_norm"]

_rms_norm = bind(RMS_NORM)
_linear_scan = bind(LINEAR_SCAN)


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
    prenorm: bool = False,
    out_dtype: Any = None,
) -> Array | tuple[Array, Array]:
    """Root-mean-square normalisation of the last dimension, with its neighbours fused in.

    With s = x + residual and z = gate::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * silu(z)                 gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * silu(z)                       gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's outputs and gradients do not depend on the batch around it.

    It is the same call as `retrograd.rms_norm`, with the same results and errors. On an NVIDIA GPU it launches the same
    kernels; on a CPU or TPU it is plain JAX. What the backward pass keeps is named `rms_norm_sum` and `rms_norm_rstd`
    for `jax.checkpoint`. It has derivatives of every order, in reverse and in forward mode: first gradients in reverse
    mode come from the kernels, all others from plain JAX, which is slower and takes more memory.

    Args:
        x: (..., N), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        weight: (N,), or (H, N) with x (..., H, N): a weight for each head. float32 or the dtype of x.
        bias: like weight.
        residual: like x, of any of the dtypes; added to x first.
        gate: like x, of any of the dtypes.
        eps: added to the mean square.
        weight_offset: added to the weight, in float32; 1.0 gives Gemma's norm.
        group_size: columns that are normalised together; all N by default. Must divide N.
        norm_before_gate: gate the output instead of the input.
        prenorm: also return s.
        out_dtype: dtype of y; that of x by default.

    Returns:
        y (..., N); with `prenorm`, (y, s), where s has the dtype of the residual. Without one s is a copy of x, which
        may be written into.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4; the gated form is Mamba-2's
    (Dao and Gu, 2024).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import rms_norm
        >>> x = jnp.ones((2, 16, 64))
        >>> dx = jax.grad(lambda x: rms_norm(x, jnp.ones(64)).sum())(x)
        >>> dx.shape
        (2, 16, 64)
    """
    y, sum_ = _rms_norm(
        {"x": x, "weight": weight, "bias": bias, "residual": residual, "gate": gate},
        {
            "eps": eps,
            "weight_offset": weight_offset,
            "group_size": group_size,
            "norm_before_gate": norm_before_gate,
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
    cu_seqlens: Int32[Array, " S_plus_1"] | None = ...,
    reverse: bool = ...,
    return_final_state: Literal[False] = ...,
) -> Float[Array, "B T D"] | Complex[Array, "B T D"]: ...


@overload
def linear_scan(
    a: Float[Array, "#B T #D"] | Complex[Array, "#B T #D"],
    b: Float[Array, "B T D"] | Complex[Array, "B T D"],
    *,
    initial_state: Float[Array, "S D"] | Complex[Array, "S D"] | None = ...,
    cu_seqlens: Int32[Array, " S_plus_1"] | None = ...,
    reverse: bool = ...,
    return_final_state: Literal[True],
) -> tuple[Float[Array, "B T D"] | Complex[Array, "B T D"], Float[Array, "S D"] | Complex[Array, "S D"]]: ...


def linear_scan(
    a: Float[Array, "#B T #D"] | Complex[Array, "#B T #D"],
    b: Float[Array, "B T D"] | Complex[Array, "B T D"],
    *,
    initial_state: Float[Array, "S D"] | Complex[Array, "S D"] | None = None,
    cu_seqlens: Int32[Array, " S_plus_1"] | None = None,
    reverse: bool = False,
    return_final_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Linear recurrence along time, each channel by itself.

    ::

        h[t] = a[t] * h[t - 1] + b[t]        h[-1] = initial_state, or 0

    The arithmetic is in float32 (complex64), whatever the dtypes; no logarithms, so decays of exactly 0 and 1 are
    exact. All gradients are bitwise reproducible; a sequence's results and gradients depend neither on its batch nor on
    what it is packed with. The product of a over a few thousand neighbouring steps is formed and must not overflow.

    It is the same call as `retrograd.linear_scan`, with the same results and errors. On an NVIDIA GPU it launches the
    same kernels; on a CPU or TPU it is plain JAX. It has derivatives of every order, in reverse and in forward mode:
    first gradients in reverse mode come from the kernels, all others from plain JAX, which is slower and takes more
    memory.

    Args:
        a: (B, T, D), or of size 1 along B, D or both, for decays that rows or channels share. Any strides.
        b: (B, T, D), any strides. a and b are each float32, bfloat16 or float16, or both are complex64. float64 and
            complex128 run on the portable path.
        initial_state: (B, D), float32 or the dtype of b (complex64 for complex b); zeros by default.
        cu_seqlens: (S + 1,) int32, for B = 1: b holds S sequences one after another, the i-th from step cu_seqlens[i]
            up to cu_seqlens[i + 1]. States are then (S, D). Steps outside of every sequence give zeros. The numbers
            must not fall or pass T: PyTorch on a CPU and JAX on a CPU outside of `jax.jit` check them; elsewhere wrong
            ones give results that mean nothing.
        reverse: go from the last step to the first: h[t] = a[t] * h[t + 1] + b[t].
        return_final_state: also return the state after the last step (the first, with `reverse`).

    Returns:
        h (B, T, D) in the dtype of b; with `return_final_state`, (h, final_state), the state (B, D) in float32, or
        complex64. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4; the gradient is in the room's README.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import linear_scan
        >>> a, b = jnp.full((2, 100, 64), 0.9), jnp.ones((2, 100, 64))
        >>> da = jax.grad(lambda a: linear_scan(a, b).sum())(a)
        >>> da.shape
        (2, 100, 64)
    """
    h, final_state = _linear_scan(
        {"a": a, "b": b, "initial_state": initial_state, "cu_seqlens": cu_seqlens},
        {"reverse": reverse, "return_final_state": return_final_state},
    )
    return (h, final_state) if return_final_state else h
