"""`mamba_ssm.ops.triton.ssd_combined`: Mamba-2's scan, and the layer from its projection to its output."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import retrograd
from retrograd.compat.checks import activation_of, errors_of, expect, expect_dims, expect_if_given, expect_integer, flag
from retrograd.compat.dtypes import beside, full
from retrograd.compat.recompute import recomputed_in_backward
from retrograd.compat.sequences import Runs, check_bounds, joined, runs_of
from retrograd.core.errors import bad_dtype, bad_shape, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import autocasts, no_autocast


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
            is a sequence. Negative numbers are padding, whose results and states are 0. On a GPU the host waits for
            the number of sequences.
        cu_seqlens: (sequences + 1,) int32: for `return_varlen_states`, the bounds of the sequences in `seq_idx`.
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
    by_step = {"x": x, "dt": dt, "B": B, "C": C, "z": z}
    by_head: dict[str, Any] = {"A": A, "D": D, "dt_bias": dt_bias}
    required = {"x": x, "dt": dt, "A": A, "B": B, "C": C}
    packing = {"initial_states": initial_states, "seq_idx": seq_idx, "cu_seqlens": cu_seqlens}
    check_tensors(me, required | by_step | by_head | packing, required=5)
    _check_sizes(me, chunk_size, state_dtype)
    softplus, final = flag(me, "dt_softplus", dt_softplus), flag(me, "return_final_states", return_final_states)
    varlen = flag(me, "return_varlen_states", return_varlen_states)
    expect_dims(me, "x", x, "(batch, seqlen, nheads, headdim)")
    expect_dims(me, "B", B, "(batch, seqlen, ngroups, dstate)")
    batch, steps, heads, headdim = x.shape
    groups, dstate = B.shape[2:]
    for name, tensor in (("x", x), ("z", z)):
        expect_if_given(me, name, tensor, x.shape, "(batch, seqlen, nheads, headdim)")
    for name, tensor in (("B", B), ("C", C)):
        expect(me, name, tensor, (batch, steps, groups, dstate), "(batch, seqlen, ngroups, dstate)")
    if groups < 1 or heads % groups:
        raise bad_shape(me, "B", B.shape, f"ngroups that divide nheads = {heads}")
    expect(me, "dt", dt, (batch, steps, heads), "(batch, seqlen, nheads)")
    _expect_by_head(me, heads, headdim, **by_head)
    states = (batch, heads, headdim, dstate)
    expect_if_given(me, "initial_states", initial_states, states, "(batch, nheads, headdim, dstate)")
    runs = _runs(me, seq_idx, initial_states, (batch, steps))
    _check_packing(me, cu_seqlens, runs, varlen, batch)

    out, last = _scan(
        me,
        by_step if runs is None else {name: None if each is None else joined(each) for name, each in by_step.items()},
        by_head,
        runs,
        initial_states,
        {"dt_softplus": softplus, "dt_limit": dt_limit},
        keep=final or varlen,
    )
    if runs is not None:
        out = runs.without_padding(out.view(x.shape))
    if last is None:
        return out
    of_rows = last if runs is None else last[runs.last]
    return (out, *([of_rows] if final else []), *([last] if varlen else []))


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

    The results of the convolution and of the norm are computed again in the backward pass, as in mamba_ssm, instead of
    being kept; under torch.compile and activation checkpointing, these decide.

    Under autocast the last projection runs in its dtype and the rest in that of zxbcdt, as in mamba_ssm; without
    autocast, outproj_weight must have the dtype of zxbcdt.

    Args:
        zxbcdt: (batch, seqlen, 2 extra + 2 dim + 2 ngroups dstate + nheads), dim = nheads headdim: a gated MLP beside
            the scan, z, x, B, C and dt. The sizes of the weights say how much of it is which; none is copied.
        conv1d_weight: (dim + 2 ngroups dstate, width), of x, B and C.
        conv1d_bias: (dim + 2 ngroups dstate,), or None.
        dt_bias: (nheads,); the step size is passed through softplus.
        A: (nheads,), negative.
        D: (nheads,) with `headdim`, or (nheads, headdim).
        chunk_size, initial_states, dt_limit, return_final_states, state_dtype: as in `mamba_chunk_scan_combined`. The
            convolution starts with zeros.
        seq_idx: as in `mamba_chunk_scan_combined`; the projection follows the zeros of padding.
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
    by_head = {"A": A, "D": D, "dt_bias": dt_bias}
    check_tensors(
        me,
        {
            "zxbcdt": zxbcdt,
            "conv1d_weight": conv1d_weight,
            **by_head,
            "conv1d_bias": conv1d_bias,
            "initial_states": initial_states,
            "seq_idx": seq_idx,
            "rmsnorm_weight": rmsnorm_weight,
            "outproj_weight": outproj_weight,
            "outproj_bias": outproj_bias,
        },
        required=5,
    )
    silu = activation_of(me, activation)
    _check_sizes(me, chunk_size, state_dtype)
    before = flag(me, "norm_before_gate", norm_before_gate)
    final = flag(me, "return_final_states", return_final_states)
    expect_dims(me, "zxbcdt", zxbcdt, "(batch, seqlen, channels)")
    expect_dims(me, "conv1d_weight", conv1d_weight, "(dim + 2 ngroups dstate, width)")
    expect_dims(me, "D", D, "(nheads,)", "(nheads, headdim)")
    (batch, steps, channels), heads, (conv, width) = zxbcdt.shape, len(D), conv1d_weight.shape
    expect(me, "zxbcdt", zxbcdt, zxbcdt.shape, "(batch, seqlen, channels)")
    if D.ndim == 2 and headdim is None:
        headdim = D.shape[1]
    expect_integer(me, "headdim", headdim)
    assert headdim is not None
    _expect_by_head(me, heads, headdim, **by_head)
    dim = heads * headdim
    expect_integer(me, "ngroups", ngroups)
    if heads % ngroups:
        raise bad_value(me, "ngroups", ngroups, f"a number that divides the {heads} heads")
    expect(me, "conv1d_weight", conv1d_weight, (conv, width), "(dim + 2 ngroups dstate, width)")
    dstate = (conv - dim) // (2 * ngroups)  # torch.compile takes no divmod of open sizes
    if (conv - dim) % (2 * ngroups) or dstate < 1:
        expected = f"(dim + 2 ngroups dstate, width), dim = {dim}, ngroups = {ngroups}"
        raise bad_shape(me, "conv1d_weight", conv1d_weight.shape, expected)
    extra = (channels - dim - conv - heads) // 2
    if (channels - dim - conv - heads) % 2 or extra < 0:
        expected = f"(batch, seqlen, 2 extra + {dim + conv + heads}), the channels of z, the convolution and dt"
        raise bad_shape(me, "zxbcdt", zxbcdt.shape, expected)
    expect_if_given(me, "conv1d_bias", conv1d_bias, (conv,), "(dim + 2 ngroups dstate,)")
    expect_if_given(me, "rmsnorm_weight", rmsnorm_weight, (dim,), "(dim,)")
    states = (batch, heads, headdim, dstate)
    expect_if_given(me, "initial_states", initial_states, states, "(batch, nheads, headdim, dstate)")
    _check_projection(me, zxbcdt, outproj_weight, outproj_bias, extra + dim)
    runs = _runs(me, seq_idx, initial_states, (batch, steps))

    rows = zxbcdt if runs is None else joined(zxbcdt)
    mlp_gate, mlp, z, xBC, dt = rows.split([extra, extra, dim, conv, heads], dim=-1)
    cu_seqlens = None if runs is None else runs.cu_seqlens

    def convolution(xBC: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        with errors_of("causal_conv1d", me, weight="conv1d_weight", x="zxbcdt"), no_autocast(zxbcdt.device.type):
            xBC = retrograd.causal_conv1d(xBC, weight, bias, cu_seqlens=cu_seqlens, activation=silu)
        x, B, C = xBC.split([dim, ngroups * dstate, ngroups * dstate], dim=-1)
        return x.unflatten(-1, (heads, headdim)), B.unflatten(-1, (ngroups, dstate)), C.unflatten(-1, (ngroups, dstate))

    def rows_of(y: Tensor) -> Tensor:
        y = y.view(batch, steps, dim)
        return y if runs is None else runs.without_padding(y)

    def normalised(y: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        options: dict[str, Any] = {"group_size": dim // ngroups, "norm_before_gate": before}
        with errors_of("rms_norm", me, eps="rmsnorm_eps"):
            return rows_of(retrograd.rms_norm(y, weight, gate=gate, eps=rmsnorm_eps, **options))

    gates_scan = rmsnorm_weight is None
    with recomputed_in_backward([zxbcdt, conv1d_weight]) as again:
        x, B, C = again(convolution, xBC, beside(zxbcdt, conv1d_weight), beside(zxbcdt, conv1d_bias))
        y, last = _scan(
            me,
            {
                "x": x,
                "dt": dt,
                "B": B,
                "C": C,
                "z": z.unflatten(-1, (heads, headdim)) if gates_scan else None,
            },
            by_head,
            runs,
            initial_states,
            {"dt_softplus": True, "dt_limit": dt_limit},
            keep=final,
        )
        y = y.flatten(-2)
        y = rows_of(y) if rmsnorm_weight is None else again(normalised, y, beside(y, rmsnorm_weight), z)
        if extra:
            y = torch.cat(((F.silu(mlp_gate) * mlp).view(batch, steps, extra), y), dim=-1)
        if outproj_weight is not None:
            y = F.linear(y, outproj_weight, None if outproj_bias is None else outproj_bias.to(outproj_weight.dtype))
    if last is None:
        return y
    return y, last if runs is None else last[runs.last]


def mamba_chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """`mamba_chunk_scan_combined` with these arguments alone, and no bounds of the step size."""
    out = mamba_chunk_scan_combined(
        x, dt, A, B, C, chunk_size, D, z, dt_bias, dt_softplus=dt_softplus, dt_limit=(-math.inf, math.inf)
    )
    assert isinstance(out, Tensor)
    return out


ssd_chunk_scan_combined_ref = mamba_chunk_scan


def _scan(
    me: str,
    by_step: dict[str, Any],
    by_head: dict[str, Any],
    runs: Runs | None,
    initial_states: Tensor | None,
    options: dict[str, Any],
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """`retrograd.ssd` in the dtype of x, of joined rows where there are runs; the states at their ends if kept."""
    x = by_step["x"]
    arguments = {name: beside(x, each) for name, each in by_step.items()}
    arguments |= {name: full(x, each) for name, each in by_head.items()}
    arguments |= {"initial_state": full(x, initial_states), "cu_seqlens": None if runs is None else runs.cu_seqlens}
    with errors_of("ssd", me), no_autocast(x.device.type):
        if not keep:
            return retrograd.ssd(**arguments, **options), None
        y, states = retrograd.ssd(**arguments, **options, return_final_state=True)
    return y, states if runs is None else runs.states_without_padding(states)


def _runs(me: str, seq_idx: Tensor | None, initial_states: Tensor | None, shape: tuple[int, int]) -> Runs | None:
    if seq_idx is None:
        return None
    expect(me, "seq_idx", seq_idx, shape, "(batch, seqlen)", "int32 or int64")
    if initial_states is not None:
        raise bad_value(me, "initial_states", "a tensor", "None, since seq_idx is given")
    return runs_of(me, seq_idx)


def _check_sizes(me: str, chunk_size: Any, state_dtype: Any) -> None:
    expect_integer(me, "chunk_size", chunk_size)
    if state_dtype not in (None, torch.float32):
        raise NotImplementedError(f"{me}: state_dtype is {state_dtype}, expected None or torch.float32")


def _expect_by_head(me: str, heads: int, headdim: int, A: Tensor, D: Tensor | None, dt_bias: Tensor | None) -> None:
    expect(me, "A", A, (heads,), "(nheads,)")
    expect_if_given(me, "dt_bias", dt_bias, (heads,), "(nheads,)")
    if D is not None:
        expect_dims(me, "D", D, "(nheads,)", "(nheads, headdim)")
        expect(me, "D", D, (heads, headdim)[: D.ndim], ("(nheads,)", "(nheads, headdim)")[D.ndim - 1])


def _check_packing(me: str, cu_seqlens: Tensor | None, runs: Runs | None, varlen: bool, batch: int) -> None:
    """Raise unless cu_seqlens, where given, has the bounds of the runs."""
    if varlen and batch != 1:
        raise bad_value(me, "return_varlen_states", True, f"False, since the batch is {batch}, not 1")
    if varlen and cu_seqlens is None:
        raise bad_value(me, "cu_seqlens", None, "a tensor, since return_varlen_states is True")
    if cu_seqlens is None:
        return
    if runs is None:
        raise bad_value(me, "seq_idx", None, "a tensor: in mamba_ssm cu_seqlens alone keeps no sequences apart")
    check_bounds(me, cu_seqlens, runs)


def _check_projection(me: str, zxbcdt: Tensor, weight: Tensor | None, bias: Tensor | None, channels: int) -> None:
    if weight is None:
        if bias is not None:
            raise bad_value(me, "outproj_bias", "a tensor", "None, since outproj_weight is None")
        return
    expect_dims(me, "outproj_weight", weight, "(out, extra + dim)")
    expect(me, "outproj_weight", weight, (len(weight), channels), "(out, extra + dim)")
    expect_if_given(me, "outproj_bias", bias, (len(weight),), "(out,)")
    if weight.dtype != zxbcdt.dtype and not autocasts(zxbcdt.device.type):
        expected = f"{zxbcdt.dtype}, the dtype of zxbcdt, since autocast is off"
        raise bad_dtype(me, "outproj_weight", str(weight.dtype), [expected])
