"""Invalid boundaries of packed sequences are refused on a CPU."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor

from retrograd import causal_conv1d, linear_scan, selective_scan, ssd
from retrograd.jax import causal_conv1d as jax_conv

T, D, N = 9, 8, 2
X = torch.zeros(1, T, D)

OPS = {
    "linear_scan": lambda bounds: linear_scan(X, X, cu_seqlens=bounds),
    "causal_conv1d": lambda bounds: causal_conv1d(X, torch.zeros(D, 4), cu_seqlens=bounds),
    "selective_scan": lambda bounds: selective_scan(
        X, X, -torch.ones(D, N), torch.zeros(1, T, N), torch.zeros(1, T, N), cu_seqlens=bounds
    ),
    "ssd": lambda bounds: ssd(
        X[..., None], X, -torch.ones(D), torch.zeros(1, T, 1, N), torch.zeros(1, T, 1, N), cu_seqlens=bounds
    )[..., 0],
}


def numbers(*bounds: int) -> Tensor:
    return torch.tensor(bounds, dtype=torch.int32)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0, 12), "cu_seqlens[1] is 12, expected numbers that do not fall, from 0 to 9"),
        ((-3, 9), "cu_seqlens[0] is -3,"),
        ((0, 5, 2, 9), "cu_seqlens[2] is 2,"),
    ],
)
def test_bounds_that_fall_or_leave_the_row_are_refused(op: str, bounds: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{op}: {text}")):
        OPS[op](numbers(*bounds))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("bounds", [(0, 9), (0, 0, 9), (2, 2, 5), (9, 9)])
def test_sequences_may_be_empty_and_leave_steps_out(op: str, bounds: tuple[int, ...]) -> None:
    assert OPS[op](numbers(*bounds)).shape == X.shape


@pytest.mark.parametrize("op", OPS)
def test_a_traced_call_refuses_them_when_it_runs(op: str) -> None:
    compiled = torch.compile(OPS[op], backend="aot_eager", fullgraph=True)
    compiled(numbers(0, 9))
    with pytest.raises(ValueError, match="cu_seqlens"):
        compiled(numbers(0, 12))


@pytest.mark.parametrize("given", [(0, 5, 12), (-3, 5, 9), (-3, 5, 12)])
def test_where_nobody_looks_a_row_is_not_left(given: tuple[int, ...]) -> None:
    x = jnp.arange(1.0, T * D + 1).reshape(1, T, D)
    traced = jax.jit(lambda bounds: jax_conv(x, jnp.ones((D, 4)), cu_seqlens=bounds))
    assert (traced(jnp.array(given, jnp.int32)) == traced(jnp.array((0, 5, 9), jnp.int32))).all()
