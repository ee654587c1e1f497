"""`mamba_ssm.ops.selective_scan_interface`: Mamba-1's scan with time last, and the inner part of its block."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import retrograd
from retrograd.compat.checks import expect, expect_dims, expect_if_given, flag, refuse
from retrograd.compat.dtypes import beside, full
from retrograd.compat.recompute import recomputed_in_backward
from retrograd.core.errors import bad_dtype, bad_shape, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import autocasts, no_autocast


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-1's selective scan, on `retrograd.selective_scan`.

    Args:
        u: (batch, dim, seqlen), any strides; a transposed view of a dense (batch, seqlen, dim) array is fastest.
        delta: like u.
        A: (dim, dstate), real or complex.
        B: (dim, dstate), (batch, dstate, seqlen) or (batch, ngroups, dstate, seqlen). If A is complex, the first form
            is complex too, and the others are real with 2 seqlen at the end: interleaved real and imaginary parts.
        C: like B; the two may have different forms.
        D: (dim,).
        z: like u: a gate.
        delta_bias: (dim,).
        delta_softplus: whether the step size is passed through softplus.
        return_last_state: also return the state after the last step.

    Returns:
        out (batch, dim, seqlen) in the dtype of u, or (out, last_state), (batch, dim, dstate) in float32 or complex64.
        Gradients flow through both; mamba_ssm's ignore the state.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "selective_scan_fn"
    check_tensors(
        me, {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}, required=5
    )
    softplus = flag(me, "delta_softplus", delta_softplus)
    last = flag(me, "return_last_state", return_last_state)
    expect_dims(me, "u", u, "(batch, dim, seqlen)")
    expect_dims(me, "A", A, "(dim, dstate)")
    batch, dim, steps = u.shape
    expect(me, "u", u, (batch, dim, steps), "(batch, dim, seqlen)")
    expect(me, "delta", delta, (batch, dim, steps), "(batch, dim, seqlen)")
    expect(me, "A", A, (dim, A.shape[1]), "(dim, dstate)", "real or complex")
    expect_if_given(me, "z", z, (batch, dim, steps), "(batch, dim, seqlen)")
    for name, tensor in (("D", D), ("delta_bias", delta_bias)):
        expect_if_given(me, name, tensor, (dim,), "(dim,)")
    scan = partial(
        retrograd.selective_scan,
        u.transpose(1, 2),
        beside(u, delta).transpose(1, 2),
        full(u, A),
        _matrix(me, "B", B, u, A),
        _matrix(me, "C", C, u, A),
        D=full(u, D),
        z=None if z is None else beside(u, z).transpose(1, 2),
        dt_bias=full(u, delta_bias),
        dt_softplus=softplus,
    )
    with no_autocast(u.device.type):  # as mamba_ssm's, it keeps the dtype of u
        if not last:
            return scan().transpose(1, 2)
        out, last_state = scan(return_final_state=True)
    return out.transpose(1, 2), last_state


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """The inner part of a Mamba-1 block: convolution, projections to the step sizes, B and C, scan, gate, projection.

    All gradients are those of this function; mamba_ssm's ignore the norms of B, C and the step sizes. Under
    autocast the projections run in its dtype and the rest in that of xz, as in mamba_ssm; without autocast,
    x_proj_weight and out_proj_weight must have the dtype of xz.

    Args:
        xz: (batch, 2 dim, seqlen): the input of the convolution and the gate. The transposed view of a
            (batch, seqlen, 2 dim) projection is taken without a copy.
        conv1d_weight: (dim, 1, width).
        conv1d_bias: (dim,).
        x_proj_weight: (delta_rank + 2 dstate, dim): to the step sizes, B and C. One dstate less for each of B and C
            that is passed; dstate counts twice if A is complex.
        delta_proj_weight: (dim, delta_rank).
        out_proj_weight: (dim_out, dim).
        out_proj_bias: (dim_out,).
        A: (dim, dstate), real or complex.
        B: None to project it, or B itself, in one of the forms that `selective_scan_fn` takes.
        C: like B.
        D: (dim,).
        delta_bias: (dim,).
        B_proj_bias: (dstate,), added to the projected B.
        C_proj_bias: (dstate,), added to the projected C.
        delta_softplus: whether the step size is passed through softplus.
        checkpoint_lvl: 1 recomputes the convolution and the step sizes in the backward pass instead of saving them,
            with bitwise equal results; 0 saves them. Under torch.compile, and if the caller has hooks on saved tensors
            (activation checkpointing, offloading), these decide, and 1 acts as 0.
        b_rms_weight: (dstate,): an RMS norm of the projected B.
        c_rms_weight: (dstate,): an RMS norm of the projected C.
        dt_rms_weight: (dim,): an RMS norm of the step sizes, after their projection and before delta_bias.
        b_c_dt_rms_eps: eps of these norms.

    Returns:
        (batch, seqlen, dim_out).

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "mamba_inner_fn"
    check_tensors(
        me,
        {
            "xz": xz,
            "conv1d_weight": conv1d_weight,
            "x_proj_weight": x_proj_weight,
            "delta_proj_weight": delta_proj_weight,
            "out_proj_weight": out_proj_weight,
            "A": A,
            "conv1d_bias": conv1d_bias,
            "out_proj_bias": out_proj_bias,
            "B": B,
            "C": C,
            "D": D,
            "delta_bias": delta_bias,
            "B_proj_bias": B_proj_bias,
            "C_proj_bias": C_proj_bias,
            "b_rms_weight": b_rms_weight,
            "c_rms_weight": c_rms_weight,
            "dt_rms_weight": dt_rms_weight,
        },
        required=6,
    )
    softplus = flag(me, "delta_softplus", delta_softplus)
    if not isinstance(checkpoint_lvl, int) or checkpoint_lvl not in (0, 1):
        raise bad_value(me, "checkpoint_lvl", checkpoint_lvl, "0 or 1")
    expect_dims(me, "xz", xz, "(batch, 2 dim, seqlen)")
    expect_dims(me, "A", A, "(dim, dstate)")
    expect_dims(me, "conv1d_weight", conv1d_weight, "(dim, 1, width)")
    expect_dims(me, "delta_proj_weight", delta_proj_weight, "(dim, delta_rank)")
    expect_dims(me, "x_proj_weight", x_proj_weight, "(rows, dim)")
    expect_dims(me, "out_proj_weight", out_proj_weight, "(dim_out, dim)")
    batch, _, steps = xz.shape
    dim, rank = delta_proj_weight.shape
    states = A.shape[1] * (2 if A.is_complex() else 1)
    expect(me, "xz", xz, (batch, 2 * dim, steps), "(batch, 2 dim, seqlen)")
    expect(me, "A", A, (dim, A.shape[1]), "(dim, dstate)", "real or complex")
    expect(me, "conv1d_weight", conv1d_weight, (dim, 1, conv1d_weight.shape[2]), "(dim, 1, width)")
    expect(me, "delta_proj_weight", delta_proj_weight, (dim, rank), "(dim, delta_rank)")
    rows = [rank, *(states if matrix is None else 0 for matrix in (B, C))]
    shapes = ("(delta_rank, dim)", "(delta_rank + dstate, dim)", "(delta_rank + 2 dstate, dim)")
    expect(me, "x_proj_weight", x_proj_weight, (sum(rows), dim), shapes[(B is None) + (C is None)])
    expect(me, "out_proj_weight", out_proj_weight, (out_proj_weight.shape[0], dim), "(dim_out, dim)")
    expect_if_given(me, "out_proj_bias", out_proj_bias, out_proj_weight.shape[:1], "(dim_out,)")
    for name, tensor in (
        ("conv1d_bias", conv1d_bias),
        ("D", D),
        ("delta_bias", delta_bias),
        ("dt_rms_weight", dt_rms_weight),
    ):
        expect_if_given(me, name, tensor, (dim,), "(dim,)")
    matrices: dict[str, Tensor] = {}
    parts = {"B": (B, B_proj_bias, b_rms_weight), "C": (C, C_proj_bias, c_rms_weight)}
    for name, (matrix, bias, weight) in parts.items():
        if matrix is not None:
            matrices[name] = _matrix(me, name, matrix, xz, A)
            refuse(me, f", since {name} is given", **{f"{name}_proj_bias": bias, f"{name.lower()}_rms_weight": weight})
        if A.is_complex():
            refuse(me, ", since A is complex", **{f"{name.lower()}_rms_weight": weight})
        for part, tensor in ((f"{name}_proj_bias", bias), (f"{name.lower()}_rms_weight", weight)):
            expect_if_given(me, part, tensor, (states,), "(dstate,)")

    device = xz.device.type
    if not autocasts(device):
        for name, tensor in (("x_proj_weight", x_proj_weight), ("out_proj_weight", out_proj_weight)):
            if tensor.dtype != xz.dtype:
                raise bad_dtype(me, name, str(tensor.dtype), [f"{xz.dtype}, the dtype of xz, since autocast is off"])

    by_step, z = xz.transpose(1, 2).chunk(2, dim=-1)
    conv_weight, conv_bias = beside(xz, conv1d_weight.squeeze(1)), beside(xz, conv1d_bias)

    def convolution(by_step: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        with no_autocast(device):
            return retrograd.causal_conv1d(by_step, weight, bias, activation="silu")

    def step_sizes(low_rank: Tensor, weight: Tensor) -> Tensor:
        return F.linear(low_rank, weight.to(low_rank.dtype))

    def normalised(rows: Tensor, weight: Tensor) -> Tensor:
        return retrograd.rms_norm(rows, beside(rows, weight), eps=b_c_dt_rms_eps)

    with recomputed_in_backward([xz, conv1d_weight], checkpoint_lvl == 1) as again:
        x = again(convolution, by_step, conv_weight, conv_bias)
        low_rank, *projected = F.linear(x, x_proj_weight).split(rows, dim=-1)
        dt = again(step_sizes, low_rank, delta_proj_weight)
        if dt_rms_weight is not None:
            dt = again(normalised, dt, dt_rms_weight)
        for (name, (_, bias, weight)), each in zip(parts.items(), projected, strict=True):
            if name in matrices:
                continue
            each = each if bias is None else each + bias.to(each.dtype)
            each = each if weight is None else normalised(each, weight)
            matrices[name] = _pairs(each, xz) if A.is_complex() else beside(xz, each)
        with no_autocast(device):
            y = retrograd.selective_scan(
                x,
                beside(x, dt),
                full(xz, A),
                matrices["B"],
                matrices["C"],
                D=full(xz, D),
                z=z,
                dt_bias=full(xz, delta_bias),
                dt_softplus=softplus,
            )
    out_bias = None if out_proj_bias is None else out_proj_bias.to(out_proj_weight.dtype)
    return F.linear(y, out_proj_weight, out_bias)


selective_scan_ref = selective_scan_fn
mamba_inner_ref = mamba_inner_fn


def _matrix(function: str, name: str, matrix: Tensor, u: Tensor, A: Tensor) -> Tensor:
    """B or C from one of mamba_ssm's forms to retrograd's layout: time before states."""
    batch, dim, steps = u.shape[0], A.shape[0], u.shape[2]
    last, end = (2 * steps, "2 seqlen") if A.is_complex() else (steps, "seqlen")
    layouts = ("(dim, dstate)", f"(batch, dstate, {end})", f"(batch, ngroups, dstate, {end})")
    expect_dims(function, name, matrix, *layouts)
    if matrix.ndim == 2:
        expect(function, name, matrix, (dim, A.shape[1]), layouts[0], "real or complex")
        if matrix.is_complex() != A.is_complex():
            raise bad_dtype(function, name, str(matrix.dtype), [str(A.dtype)])
        return full(u, matrix)
    groups = matrix.shape[1:-2]
    expect(function, name, matrix, (batch, *groups, A.shape[1], last), layouts[matrix.ndim - 2])
    if groups and (groups[0] < 1 or dim % groups[0]):
        raise bad_shape(function, name, matrix.shape, f"groups that divide dim = {dim}")
    by_step = _pairs(matrix, u) if A.is_complex() else beside(u, matrix)
    return by_step.movedim(-1, 1)


def _pairs(parts: Tensor, u: Tensor) -> Tensor:
    """Complex numbers from interleaved real and imaginary parts."""
    return torch.view_as_complex(full(u, parts).unflatten(-1, (-1, 2)).contiguous())
