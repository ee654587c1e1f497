"""`mamba_ssm.ops.triton.ssd_combined`: Mamba-2's scan, and the layer from its projection to its output."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import retrograd
from retrograd.compat.causal_conv1d.causal_conv1d_interface import causal_conv1d_fn
from retrograd.compat.checks import expect, expect_dims, expect_if_given, flag
from retrograd.compat.dtypes import beside, full
from retrograd.compat.sequences import joined, runs_of, without_padding
from retrograd.core.errors import as_tuple, bad_shape, bad_type, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import no_autocast

from .layernorm_gated import rmsnorm_fn


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Mamba-2's scan, on `retrograd.ssd`.

    Args:
        x: (batch, seqlen, nheads, headdim).
        dt: (batch, seqlen, nheads).
        A: (nheads,), negative.
        B: (batch, seqlen, ngroups, dstate); ngroups divides nheads.
        C: like B.
        chunk_size: has no effect: the kernels choose their blocks.
        D: (nheads,) or (nheads, headdim): a skip connection.
        z: like x: a gate.
        dt_bias: (nheads,).
        initial_states: (batch, nheads, headdim, dstate); not with `seq_idx`.
        seq_idx: (batch, seqlen) int32: which sequence a step belongs to, for packed sequences; a run of equal numbers
            is a sequence. Negative numbers are padding, whose results are 0. On a GPU the host waits for the number of
            sequences.
        cu_seqlens: (sequences + 1,): for `return_varlen_states`, the bounds of the sequences that `seq_idx` has.
        dt_softplus: whether the step size is passed through softplus.
        dt_limit: bounds of the step size.
        return_final_states: also return the state after the last step of each row.
        return_varlen_states: also return the state after the last step of each sequence; for a batch of 1.
        state_dtype: None or float32, which states have.

    Returns:
        out (batch, seqlen, nheads, headdim) in the dtype of x, then the final states (batch, nheads, headdim, dstate),
        then those of the sequences (sequences, nheads, headdim, dstate), of those that were asked for; both float32.
        Gradients flow through all of them.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "mamba_chunk_scan_combined"
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    packing = {"initial_states": initial_states, "seq_idx": seq_idx, "cu_seqlens": cu_seqlens}
    check_tensors(me, tensors | packing, required=5)
    _check_sizes(me, chunk_size, state_dtype)
    softplus, final = flag(me, "dt_softplus", dt_softplus), flag(me, "return_final_states", return_final_states)
    varlen = flag(me, "return_varlen_states", return_varlen_states)
    expect_dims(me, "x", x, "(batch, seqlen, nheads, headdim)")
    expect_dims(me, "B", B, "(batch, seqlen, ngroups, dstate)")
    batch, steps, heads, _ = x.shape
    expect(me, "dt", dt, (batch, steps, heads), "(batch, seqlen, nheads)")
    expect(me, "A", A, (heads,), "(nheads,)")
    expect_if_given(me, "dt_bias", dt_bias, (heads,), "(nheads,)")
    expect_if_given(me, "seq_idx", seq_idx, (batch, steps), "(batch, seqlen)", "int32 or int64")
    _check_packing(me, batch, varlen, **packing)

    rows: dict[str, Any] = {"x": x, "dt": beside(x, dt), "B": beside(x, B), "C": beside(x, C), "z": beside(x, z)}
    limits = tuple(map(float, as_tuple(dt_limit)))
    shared: dict[str, Any] = {"A": full(x, A), "D": full(x, D), "dt_bias": full(x, dt_bias)}
    shared |= {"dt_softplus": softplus, "dt_limit": limits}
    if seq_idx is None:
        initial = full(x, initial_states)
        with no_autocast(x.device.type):
            if final:
                return retrograd.ssd(**rows, **shared, initial_state=initial, return_final_state=True)
            return retrograd.ssd(**rows, **shared, initial_state=initial)
    runs = runs_of(me, seq_idx)
    if cu_seqlens is not None and not torch.equal(cu_seqlens.int(), runs.cu_seqlens):
        found_ends = f"the bounds of the runs of seq_idx, {runs.cu_seqlens.tolist()}"
        raise bad_value(me, "cu_seqlens", cu_seqlens.tolist(), found_ends)
    packed: dict[str, Any] = {name: None if row is None else joined(row) for name, row in rows.items()}
    with no_autocast(x.device.type):
        y, states = retrograd.ssd(**packed, **shared, cu_seqlens=runs.cu_seqlens, return_final_state=True)
    out = without_padding(runs, y.view(x.shape))
    asked = [*([states[runs.last]] if final else []), *([states] if varlen else [])]
    return (out, *asked) if asked else out


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-2's layer after its first projection: convolution, scan, gate or gated norm, last projection.

    Args:
        zxbcdt: (batch, seqlen, 2 extra + 2 dim + 2 ngroups dstate + nheads), dim = nheads headdim: a gated MLP beside
            the scan, z, x, B, C and dt. The sizes of the weights say how much of it is which.
        conv1d_weight: (dim + 2 ngroups dstate, width), of x, B and C.
        conv1d_bias: (dim + 2 ngroups dstate,), or None.
        dt_bias: (nheads,); the step size is passed through softplus.
        A: (nheads,), negative.
        D: (nheads,) with `headdim`, or (nheads, headdim).
        chunk_size, initial_states, seq_idx, dt_limit, return_final_states, state_dtype: as in
            `mamba_chunk_scan_combined`.
        activation: of the convolution: None, "silu" or "swish", which is the same.
        rmsnorm_weight: (dim,), of an RMS norm in groups of dim / ngroups with z as its gate; None: z gates the scan.
        rmsnorm_eps: added to the mean square.
        outproj_weight: (out, extra + dim), or None for no projection.
        outproj_bias: (out,), or None.
        headdim: channels of a head; needed unless D has them.
        ngroups: groups of B and C; divides nheads.
        norm_before_gate: whether the gate multiplies the norm's output instead of its input.

    Returns:
        out (batch, seqlen, out, or extra + dim), or (out, final states).

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "mamba_split_conv1d_scan_combined"
    tensors = {"zxbcdt": zxbcdt, "conv1d_weight": conv1d_weight, "dt_bias": dt_bias, "A": A, "D": D}
    optional = {"conv1d_bias": conv1d_bias, "initial_states": initial_states, "seq_idx": seq_idx}
    projection = {"outproj_weight": outproj_weight, "outproj_bias": outproj_bias}
    check_tensors(me, tensors | optional | projection | {"rmsnorm_weight": rmsnorm_weight}, required=5)
    expect_dims(me, "zxbcdt", zxbcdt, "(batch, seqlen, channels)")
    expect_dims(me, "conv1d_weight", conv1d_weight, "(dim + 2 ngroups dstate, width)")
    expect_dims(me, "D", D, "(nheads,)", "(nheads, headdim)")
    if outproj_weight is None and outproj_bias is not None:
        raise bad_value(me, "outproj_bias", "a tensor", "None, since outproj_weight is None")
    heads = len(D)
    if D.ndim == 2:
        headdim = D.shape[1]
    if not isinstance(headdim, int):
        raise bad_type(me, "headdim", headdim, "an integer, since D is (nheads,)")
    channels, dim, conv = zxbcdt.shape[2], heads * headdim, len(conv1d_weight)
    if not isinstance(ngroups, int) or ngroups < 1 or heads % ngroups or (conv - dim) % (2 * ngroups) or conv < dim:
        raise bad_value(
            me, "ngroups", ngroups, f"groups of {heads} heads, and of the {conv} - {dim} channels of B and C"
        )
    extra, odd = divmod(channels - dim - conv - heads, 2)
    if odd or extra < 0:
        expected = f"(batch, seqlen, {dim + conv + heads} + 2 extra), the channels of z, of the convolution and of dt"
        raise bad_shape(me, "zxbcdt", zxbcdt.shape, expected)
    expect_if_given(me, "rmsnorm_weight", rmsnorm_weight, (dim,), "(dim,)")

    gate, beside_scan, z, xBC, dt = zxbcdt.split([extra, extra, dim, conv, heads], dim=-1)
    xBC = causal_conv1d_fn(
        xBC.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx=seq_idx, activation=activation
    ).transpose(1, 2)  # type: ignore[union-attr]
    states = (conv - dim) // (2 * ngroups)
    x, B, C = xBC.split([dim, ngroups * states, ngroups * states], dim=-1)
    found = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, headdim)),
        dt,
        A,
        B.unflatten(-1, (ngroups, states)),
        C.unflatten(-1, (ngroups, states)),
        chunk_size,
        D=D,
        z=z.unflatten(-1, (heads, headdim)) if rmsnorm_weight is None else None,
        dt_bias=dt_bias,
        initial_states=initial_states,
        seq_idx=seq_idx,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=return_final_states,
        state_dtype=state_dtype,
    )
    y, *final = found if isinstance(found, tuple) else (found,)
    out = y.flatten(-2)
    if rmsnorm_weight is not None:
        with no_autocast(out.device.type):
            out = rmsnorm_fn(out, rmsnorm_weight, None, z, rmsnorm_eps, dim // ngroups, norm_before_gate)
    if extra:
        out = torch.cat((F.silu(gate) * beside_scan, out), dim=-1)
    if outproj_weight is not None:
        out = F.linear(out, outproj_weight, outproj_bias)
    return (out, final[0]) if final else out


def _check_sizes(me: str, chunk_size: Any, state_dtype: Any) -> None:
    if not isinstance(chunk_size, int):
        raise bad_type(me, "chunk_size", chunk_size, "an integer")
    if chunk_size < 1:
        raise bad_value(me, "chunk_size", chunk_size, "at least 1")
    if state_dtype not in (None, torch.float32):
        raise NotImplementedError(f"{me}: state_dtype is {state_dtype}, expected None or torch.float32")


def _check_packing(
    me: str,
    batch: int,
    varlen: bool,
    initial_states: Tensor | None,
    seq_idx: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise for what would be ignored, or needs something else."""
    if seq_idx is not None and initial_states is not None:
        raise bad_value(me, "initial_states", "a tensor", "None, since seq_idx is given")
    if seq_idx is None and (cu_seqlens is not None or varlen):
        raise bad_value(me, "seq_idx", None, "a tensor: cu_seqlens alone keeps no sequences apart in mamba_ssm")
    if varlen and cu_seqlens is None:
        raise bad_value(me, "cu_seqlens", None, "a tensor, since return_varlen_states is True")
    if varlen and batch != 1:
        raise bad_value(me, "return_varlen_states", True, f"False, since the batch is {batch}, not 1")
