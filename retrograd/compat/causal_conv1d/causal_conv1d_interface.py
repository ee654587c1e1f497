"""`causal_conv1d.causal_conv1d_interface`: the convolution with time last, and its update for generation."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import retrograd
from retrograd.compat.checks import activation_of, expect, expect_dims, expect_if_given, flag
from retrograd.compat.dtypes import beside
from retrograd.compat.rows import read_rows, write_rows, zero_padding
from retrograd.compat.sequences import joined, runs_of
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import no_autocast


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Depthwise causal convolution along time, on `retrograd.causal_conv1d`.

    Args:
        x: (batch, dim, seqlen), any strides; a transposed view of a dense (batch, seqlen, dim) array is fastest.
        weight: (dim, width).
        bias: (dim,).
        seq_idx: (batch, seqlen) int32: which sequence a step belongs to, for packed sequences; a run of equal
            numbers is a sequence. Negative numbers are padding, whose results are 0. On a GPU the host waits for the
            number of sequences.
        initial_states: (batch, dim, width - 1): the inputs before the first step; not with `seq_idx`.
        return_final_states: also return the last width - 1 inputs; not with `seq_idx`.
        final_states_out: (batch, dim, width - 1): where these are written; ignored without `return_final_states`.
        activation: None, "silu" or "swish", which is the same.

    Returns:
        out (batch, dim, seqlen) in the dtype of x, or (out, final_states). Gradients flow through both.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "causal_conv1d_fn"
    silu = activation_of(me, activation)
    if not flag(me, "return_final_states", return_final_states):
        final_states_out = None
    check_tensors(
        me,
        {
            "x": x,
            "weight": weight,
            "bias": bias,
            "seq_idx": seq_idx,
            "initial_states": initial_states,
            "final_states_out": final_states_out,
        },
        required=2,
    )
    expect_dims(me, "x", x, "(batch, dim, seqlen)")
    expect_dims(me, "weight", weight, "(dim, width)")
    batch, dim, steps = x.shape
    width = weight.shape[1]
    expect(me, "x", x, (batch, dim, steps), "(batch, dim, seqlen)")
    expect(me, "weight", weight, (dim, width), "(dim, width)")
    expect_if_given(me, "bias", bias, (dim,), "(dim,)")
    expect_if_given(me, "seq_idx", seq_idx, (batch, steps), "(batch, seqlen)", "int32 or int64")
    for name, states in (("initial_states", initial_states), ("final_states_out", final_states_out)):
        expect_if_given(me, name, states, (batch, dim, width - 1), "(batch, dim, width - 1)")

    by_step, weight, bias = x.transpose(1, 2), beside(x, weight), beside(x, bias)
    device = x.device.type  # whose autocast changes no dtypes, as with the original
    if seq_idx is not None:
        if initial_states is not None:
            raise ValueError(f"{me}: initial_states is given, expected None, since seq_idx is given")
        if return_final_states:
            raise bad_value(me, "return_final_states", return_final_states, "False, since seq_idx is given")
        if (runs := runs_of(me, seq_idx)) is not None:
            with no_autocast(device):
                y = retrograd.causal_conv1d(joined(by_step), weight, bias, activation=silu, cu_seqlens=runs.cu_seqlens)
            return runs.without_padding(y.view(batch, steps, dim)).transpose(1, 2)
    initial = None if initial_states is None else initial_states.to(x.dtype)
    convolution = partial(retrograd.causal_conv1d, by_step, weight, bias, activation=silu, initial_state=initial)
    with no_autocast(device):
        if not return_final_states:
            return convolution().transpose(1, 2)
        y, final = convolution(return_final_state=True)
    return y.transpose(1, 2), final if final_states_out is None else final_states_out.copy_(final)


@torch.no_grad()
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """One step of generation, or a few; `conv_state` is written in place. Has no gradient.

    Args:
        x: (batch, dim), or (batch, dim, seqlen).
        conv_state: (batch, dim, state_len), state_len >= width - 1: the last inputs, the newest at the end.
        weight: (dim, width).
        bias: (dim,).
        activation: None, "silu" or "swish", which is the same.
        cache_seqlens: (batch,) int32: conv_state is then a ring buffer, next written at cache_seqlens % state_len.
        conv_state_indices: (batch,) int32: the rows of a larger conv_state that belong to the rows of x; negative
            ones are padding, whose results are 0 and which change no state.

    Returns:
        out, shaped as x, in its dtype.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "causal_conv1d_update"
    silu = activation_of(me, activation)
    check_tensors(
        me,
        {
            "x": x,
            "conv_state": conv_state,
            "weight": weight,
            "bias": bias,
            "cache_seqlens": cache_seqlens,
            "conv_state_indices": conv_state_indices,
        },
        required=3,
    )
    expect_dims(me, "x", x, "(batch, dim)", "(batch, dim, seqlen)")
    expect_dims(me, "conv_state", conv_state, "(batch, dim, state_len)")
    expect_dims(me, "weight", weight, "(dim, width)")
    steps = x[..., None] if x.ndim == 2 else x
    batch, dim, count = steps.shape
    width, length = weight.shape[1], conv_state.shape[2]
    expect(me, "x", x, x.shape, "(batch, dim)")
    rows = batch if conv_state_indices is None else conv_state.shape[0]
    expect(me, "conv_state", conv_state, (rows, dim, length), "(batch, dim, state_len)")
    if length < width - 1:
        raise bad_shape(me, "conv_state", conv_state.shape, f"a state_len of at least width - 1 = {width - 1}")
    expect(me, "weight", weight, (dim, width), "(dim, width)")
    expect_if_given(me, "bias", bias, (dim,), "(dim,)")
    expect_if_given(me, "cache_seqlens", cache_seqlens, (batch,), "(batch,)", "int32 or int64")
    expect_if_given(me, "conv_state_indices", conv_state_indices, (batch,), "(batch,)", "int32 or int64")

    state = read_rows(conv_state, conv_state_indices)
    if cache_seqlens is None:
        before, new = state[..., length - (width - 1) :], torch.cat([state, steps.to(state.dtype)], -1)[..., count:]
    else:
        before = state.gather(2, _ring(cache_seqlens, 1 - width, 0, state))
        last = min(count, length)  # inputs that later ones would overwrite at once are skipped
        places = _ring(cache_seqlens, count - last, count, state)
        new = state.scatter(2, places, steps[..., count - last :].to(state.dtype))
    with no_autocast(x.device.type):
        y, _ = retrograd.causal_conv1d_update(
            steps.transpose(1, 2), before.to(x.dtype), beside(x, weight), beside(x, bias), activation=silu
        )
    write_rows(conv_state, conv_state_indices, new)
    y = zero_padding(conv_state_indices, y)
    return y[:, 0] if x.ndim == 2 else y.transpose(1, 2)


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`causal_conv1d_fn` without `seq_idx`."""
    return causal_conv1d_fn(x, weight, bias, None, initial_states, return_final_states, final_states_out, activation)


causal_conv1d_update_ref = causal_conv1d_update


def _ring(cache_seqlens: Tensor, start: int, end: int, state: Tensor) -> Tensor:
    """Ring positions of the steps from start to end (0 is the next step), for every row and channel of a state."""
    steps = torch.arange(start, end, device=state.device) + cache_seqlens[:, None].long()
    return steps.remainder(state.shape[2])[:, None].expand(-1, state.shape[1], -1)
