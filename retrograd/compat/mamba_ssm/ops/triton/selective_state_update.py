"""`mamba_ssm.ops.triton.selective_state_update`: one step of generation."""

from __future__ import annotations

import torch
from torch import Tensor

import retrograd
from retrograd.compat.checks import expect, expect_dims, expect_if_given, flag
from retrograd.compat.dtypes import arithmetic, beside, full
from retrograd.compat.rows import read_rows, write_rows, zero_padding
from retrograd.core.errors import bad_shape
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import no_autocast


@torch.no_grad()
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """One step of the selective scan; `state` is written in place. Has no gradient.

    Args:
        state: (batch, dim, dstate) or (batch, nheads, dim, dstate).
        x: (batch, dim) or (batch, nheads, dim).
        dt: like x.
        A: (dim, dstate) or (nheads, dim, dstate).
        B: (batch, dstate) or (batch, ngroups, dstate); ngroups divides nheads.
        C: like B.
        D: (dim,) or (nheads, dim).
        z: like x: a gate.
        dt_bias: like D.
        dt_softplus: whether the step size is passed through softplus.
        state_batch_indices: (batch,) int32: the rows of a larger state that belong to the rows of x; negative ones
            are padding, whose results are 0 and which change no state.

    Returns:
        out, shaped as x, in its dtype.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "selective_state_update"
    check_tensors(
        me,
        {
            "state": state,
            "x": x,
            "dt": dt,
            "A": A,
            "B": B,
            "C": C,
            "D": D,
            "z": z,
            "dt_bias": dt_bias,
            "state_batch_indices": state_batch_indices,
        },
        required=6,
    )
    softplus = flag(me, "dt_softplus", dt_softplus)
    expect_dims(me, "state", state, "(batch, dim, dstate)", "(batch, nheads, dim, dstate)")
    heads, dims = state.shape[1:-1], "(nheads, dim" if state.ndim == 4 else "(dim"
    expect_dims(me, "x", x, f"(batch, {dims[1:]})")
    batch, dstate = x.shape[0], state.shape[-1]
    rows = batch if state_batch_indices is None else state.shape[0]
    expect(me, "state", state, (rows, *heads, dstate), f"(batch, {dims[1:]}, dstate)")
    for name, tensor in (("x", x), ("dt", dt)):
        expect(me, name, tensor, (batch, *heads), f"(batch, {dims[1:]})")
    expect_if_given(me, "z", z, (batch, *heads), f"(batch, {dims[1:]})")
    expect(me, "A", A, (*heads, dstate), f"{dims}, dstate)")
    for name, optional in (("D", D), ("dt_bias", dt_bias)):
        expect_if_given(me, name, optional, heads, f"{dims})")
    for name, tensor in (("B", B), ("C", C)):
        expect_dims(me, name, tensor, "(batch, dstate)", "(batch, ngroups, dstate)")
        groups = tensor.shape[1:-1]
        expect(me, name, tensor, (batch, *groups, dstate), "(batch, dstate) or (batch, ngroups, dstate)")
        if groups and (groups[0] < 1 or (heads[0] if state.ndim == 4 else 1) % groups[0]):
            raise bad_shape(me, name, tensor.shape, "ngroups that divide nheads, 1 without heads")
    expect_if_given(me, "state_batch_indices", state_batch_indices, (batch,), "(batch,)", "int32 or int64")

    before = read_rows(state, state_batch_indices).to(arithmetic(x))
    skip, gate = full(x, D), beside(x, z)
    with no_autocast(x.device.type):
        if state.ndim == 4 and _same(A, 1, 2) and _same(dt, 2) and (dt_bias is None or _same(dt_bias, 1)):
            # Mamba-2: a head has one decay and one step size, expanded to its channels and states.
            y, new = retrograd.ssd_update_(
                before,
                x,
                beside(x, dt)[..., 0],
                full(x, A[:, 0, 0]),
                beside(x, B if B.ndim == 3 else B[:, None]),
                beside(x, C if C.ndim == 3 else C[:, None]),
                D=skip,
                z=gate,
                dt_bias=None if dt_bias is None else full(x, dt_bias[:, 0]),
                dt_softplus=softplus,
            )
        else:
            # A head's channels are adjacent, so that heads are just groups of channels.
            y, new = retrograd.selective_state_update(
                before.flatten(1, -2),
                x.flatten(1),
                beside(x, dt).flatten(1),
                full(x, A).flatten(0, -2),
                beside(x, B),
                beside(x, C),
                D=None if skip is None else skip.flatten(),
                z=None if gate is None else gate.flatten(1),
                dt_bias=None if dt_bias is None else full(x, dt_bias).flatten(),
                dt_softplus=softplus,
            )
    if new is not state:
        write_rows(state, state_batch_indices, new.view(batch, *heads, dstate).to(state.dtype))
    return zero_padding(state_batch_indices, y.view(x.shape))


selective_state_update_ref = selective_state_update


def _same(tensor: Tensor, *axes: int) -> bool:
    """Whether values do not change along axes, by their strides: no value is read."""
    return all(tensor.shape[axis] and (tensor.shape[axis] == 1 or tensor.stride(axis) == 0) for axis in axes)
