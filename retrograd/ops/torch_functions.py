"""The public functions for PyTorch: written by `make functions` from `ops/*/op.py`, not by hand."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from retrograd.core.errors import as_tuple
from retrograd.core.torch_arguments import torch_dtype
from retrograd.core.torch_op import bind

from .rms_norm.op import OP as RMS_NORM
from .ssd.op import OP as SSD
from .ssd.torch_generation import SsdWindow, ssd_prefill, ssd_step, ssd_update

__all__ = ["SsdWindow", "rms_norm", "ssd", "ssd_prefill", "ssd_step", "ssd_update"]

_rms_norm = bind(RMS_NORM)
_ssd = bind(SSD)


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
    prenorm: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalisation of the last dimension, with its neighbours fused in.

    With s = x + residual and z = gate::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * silu(z)                 gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * silu(z)                       gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's outputs and gradients do not depend on the batch around it.

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
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.ones(64, requires_grad=True)
        >>> y, stream = retrograd.rms_norm(x, weight, residual=torch.randn(2, 16, 64), prenorm=True)
        >>> (y.sum() + stream.sum()).backward()
        >>> weight.grad.shape
        torch.Size([64])
    """
    y, sum_ = _rms_norm(
        {"x": x, "weight": weight, "bias": bias, "residual": residual, "gate": gate},
        {
            "eps": eps,
            "weight_offset": weight_offset,
            "group_size": group_size,
            "norm_before_gate": norm_before_gate,
            "prenorm": prenorm,
            "out_dtype": torch_dtype("rms_norm", "out_dtype", out_dtype),
        },
    )
    if prenorm and residual is None:
        sum_ = x.clone()
    return (y, sum_) if prenorm else y  # type: ignore[return-value]


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
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: tuple[float, float] = ...,
    return_final_state: Literal[False] = ...,
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
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: tuple[float, float] = ...,
    return_final_state: Literal[True],
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
    cu_seqlens: Int32[Tensor, " S+1"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-2's state space dual: a linear recurrence with one decay a head, computed as matrix products.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, moved into `dt_limit`, for every head,
    whose state h is (P, N)::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]^T      h[-1] = initial_state, or 0
        y[t] = h[t] C[t] + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    Sums and states are in float32; what is multiplied in matrix products is rounded to the dtype of x, B and C, or
    stays in float32 where these differ. All gradients are bitwise reproducible; a sequence's results and gradients
    depend neither on its batch nor on what it is packed with. A row of the result depends on no later step, if all
    values are finite: one that is not may spoil up to 63 rows before it. For its backward pass the forward pass keeps
    the state of every 128th step (256th above N = 128): of a long sequence, where x, B and C have one dtype, at most as
    many bytes as x has. Beside an x in float64 what is float32 here is float64.

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
        cu_seqlens: (S + 1,) int32, for B = 1: x holds S sequences one after another, the i-th from step cu_seqlens[i]
            up to cu_seqlens[i + 1]. States are then (S, H, P, N). Steps outside of every sequence give zeros. The
            numbers must not fall or pass T: PyTorch on a CPU and JAX on a CPU outside of `jax.jit` check them;
            elsewhere wrong ones give results that mean nothing.
        dt_softplus: whether softplus makes delta positive.
        dt_limit: the least and the largest delta; what lies outside is moved to them, and has no gradient. By default 0
            and infinity: without `dt_softplus` a negative step becomes 0.
        return_final_state: also return the state after the last step.

    Returns:
        out (B, T, H, P) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, H, P, N) in
        float32. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

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
            "cu_seqlens": cu_seqlens,
        },
        {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit), "return_final_state": return_final_state},
    )
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]
