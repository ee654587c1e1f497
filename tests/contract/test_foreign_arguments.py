"""Calls in the habits of other libraries: names that they have, layouts, and integers of 64 bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import retrograd
import retrograd.jax
from retrograd.core.spec import CallSpec, options, parameters
from retrograd.ops.functions import calls, ops

CALLS = [call for op in ops() for call in calls(op)]
LENGTHS = (5, 11)
TIME, HEADS, SIZE = sum(LENGTHS), 4, 16


@pytest.mark.parametrize(
    ("call", "name", "expected"),
    [
        ("attention", "softmax_scale", "scale"),
        ("attention", "is_causal", "causal"),
        ("attention", "cu_seqlens", "cu_seqlens_q and cu_seqlens_k"),
        ("attention", "attn_mask", r"causal, window, segment_ids or bias \(0 where a key is seen, else -inf\)"),
        ("attention", "window_size", r"window, \(left, right\)"),
        ("attention_qkvpacked", "softmax_scale", "scale"),
        ("causal_conv1d", "seq_idx", "cu_seqlens, where sequences begin and end"),
        ("linear_scan", "return_final_stat", "return_final_state"),
        ("rms_norm", "z", "gate"),
        ("selective_scan", "delta_softplus", "dt_softplus"),
        ("ssd", "chunk_size", "nothing: the kernels choose their blocks"),
        ("linear", "frobnicate", "one of x, weight, bias"),
    ],
)
@pytest.mark.parametrize("module", [retrograd, retrograd.jax], ids=["torch", "jax"])
def test_an_argument_of_another_name_is_refused_with_the_name_that_it_has_here(
    module: Any, call: str, name: str, expected: str
) -> None:
    (declared,) = (each for each in CALLS if each.op == call)
    required = [None for parameter in parameters(declared).values() if not parameter.optional]
    with pytest.raises(TypeError, match=f"^{call}: {name} is no argument, expected {expected}"):
        getattr(module, call)(*required, **{name: 1})


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.op)
def test_names_of_other_libraries_are_none_of_ours(call: type[CallSpec]) -> None:
    assert call.elsewhere.keys().isdisjoint({*parameters(call), *options(call)})


Q = torch.randn(1, TIME, HEADS, SIZE)


def packed(dtype: torch.dtype) -> Tensor:
    return torch.tensor([0, *np.cumsum(LENGTHS)], dtype=dtype)


PACKED: dict[str, Callable[[torch.dtype], Tensor]] = {
    "attention": lambda dtype: retrograd.attention(
        *[Q] * 3, cu_seqlens_q=packed(dtype), cu_seqlens_k=packed(dtype), causal=True
    ),
    "attention_qkvpacked": lambda dtype: retrograd.attention_qkvpacked(
        torch.stack([Q] * 3, 2), cu_seqlens=packed(dtype), causal=True
    ),
    "linear_scan": lambda dtype: retrograd.linear_scan(Q.flatten(2).sigmoid(), Q.flatten(2), cu_seqlens=packed(dtype)),
    "causal_conv1d": lambda dtype: retrograd.causal_conv1d(
        Q.flatten(2), torch.ones(HEADS * SIZE, 4), cu_seqlens=packed(dtype)
    ),
    "ssd": lambda dtype: retrograd.ssd(Q, Q[..., 0].abs(), -torch.ones(HEADS), Q, Q, cu_seqlens=packed(dtype)),
}


@pytest.mark.parametrize("op", PACKED)
def test_boundaries_may_be_what_cumsum_gives(op: str) -> None:
    assert torch.equal(PACKED[op](torch.int64), PACKED[op](torch.int32))
    torch.testing.assert_close(
        torch.compile(PACKED[op], backend="eager", fullgraph=True)(torch.int64), PACKED[op](torch.int32)
    )


@pytest.mark.parametrize("large", [0, 2**32, 2**62])
def test_labels_may_be_any_numbers_of_64_bits(large: int) -> None:
    labels = torch.tensor([[0, 0, 0, large + 1, large + 1, 3, -1, -(2**40), 3, 3, 0, 0, 0, 1, 1, 1]])
    expected = torch.tensor([[0, 0, 0, 1, 1, 3, -1, -1, 3, 3, 0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    found = [retrograd.attention(Q, Q, Q, segment_ids=each, causal=True) for each in (labels, expected)]
    assert torch.equal(*found)


@pytest.mark.parametrize("bound", [2**31, 2**32 + 16, -1, -(2**40)])
def test_boundaries_beyond_32_bits_are_refused(bound: int) -> None:
    with pytest.raises(ValueError, match=r"cu_seqlens\[1\] is -?\d+, expected numbers that do not fall, from 0 to 16"):
        retrograd.linear_scan(Q.flatten(2), Q.flatten(2), cu_seqlens=torch.tensor([0, bound, 16]))


def test_jax_takes_them_in_64_bits() -> None:
    with jax.enable_x64(True):
        q, labels = jnp.asarray(Q.numpy()), jnp.asarray([[0] * 5 + [2**40] * 5 + [-1] * 6])
        bounds = jnp.asarray([0, *np.cumsum(LENGTHS)])
        assert labels.dtype == bounds.dtype == jnp.int64
        same = jnp.asarray([[0] * 5 + [1] * 5 + [-1] * 6], jnp.int32)
        found = [retrograd.jax.attention(q, q, q, segment_ids=each, causal=True) for each in (labels, same)]
        assert jnp.array_equal(found[0], found[1])
        x = q.reshape(1, TIME, -1)
        scanned = [retrograd.jax.linear_scan(x, x, cu_seqlens=each) for each in (bounds, bounds.astype(jnp.int32))]
        assert jnp.array_equal(scanned[0], scanned[1])


def test_heads_before_time_are_warned_of() -> None:
    q = torch.randn(1, 2, 130, 16)  # (B, H, T, D)
    with pytest.warns(UserWarning, match=r"q has more heads than there are keys.*pass q.transpose\(1, 2\)"):
        retrograd.attention(q, q, q)
    q = torch.randn(1, 3, 130, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        retrograd.attention(*[q.transpose(1, 2)] * 3)
        retrograd.attention(q[:, :1], *[torch.randn(1, 200, 130, 16)] * 2)  # a step of generation


def test_channels_before_time_are_refused_with_what_to_pass() -> None:
    x, weight = torch.randn(2, 64, 100), torch.randn(64, 4)
    text = r"x has shape \(2, 64, 100\), expected \(batch, time, channels=64\), with the channels of weight: "
    with pytest.raises(ValueError, match=rf"^causal_conv1d: {text}pass x.transpose\(1, 2\), a view"):
        retrograd.causal_conv1d(x, weight)
    assert retrograd.causal_conv1d(x.transpose(1, 2), weight).shape == (2, 100, 64)
