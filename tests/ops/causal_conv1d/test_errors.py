"""Errors of wrong calls of causal_conv1d: they name the argument, its value and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import retrograd.jax
from retrograd import causal_conv1d as conv
from retrograd import causal_conv1d_update as update

X = torch.zeros(2, 5, 8)
W = torch.zeros(8, 4)
CU = torch.tensor([0, 5], dtype=torch.int32)
NAME = "causal_conv1d: "

ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "x of two dimensions": (
        lambda: conv(X[0], W), ValueError, "x has shape (5, 8), expected (batch, time, channels)"),
    "x of integers": (
        lambda: conv(X.int(), W), TypeError,
        "x has dtype int32, expected float32 or bfloat16 or float16 or float64"),
    "x a list": (lambda: conv([1.0], W), TypeError, "x is list, expected a torch.Tensor"),  # type: ignore[call-overload]
    "no weight": (lambda: conv(X, None), TypeError, "weight is NoneType, expected an array"),  # type: ignore[call-overload]
    "weight the wrong way": (
        lambda: conv(X, W.T), ValueError, "weight has shape (4, 8), expected (channels=8, width=1..64)"),
    "weight too wide": (
        lambda: conv(X, torch.zeros(8, 65)), ValueError,
        "weight has shape (8, 65), expected (channels=8, width=1..64)"),
    "weight of lower precision": (
        lambda: conv(X, W.bfloat16()), TypeError, "weight has dtype bfloat16, expected float32"),
    "weight of the other half": (
        lambda: conv(X.half(), W.bfloat16()), TypeError, "weight has dtype bfloat16, expected float32 or float16"),
    "bias of another size": (
        lambda: conv(X, W, torch.zeros(4)), ValueError, "bias has shape (4,), expected (channels=8,)"),
    "another activation": (
        lambda: conv(X, W, activation="relu"), ValueError,  # type: ignore[call-overload]
        "activation is 'relu', expected None or 'silu'"),
    "activation not a name": (
        lambda: conv(X.double(), W.double(), activation=True), TypeError,  # type: ignore[call-overload]
        "activation is bool, expected a str or None"),
    "return_final_state not a bool": (
        lambda: conv(X, W, return_final_state=1), TypeError,  # type: ignore[call-overload]
        "return_final_state is int, expected a bool"),
    "state of another batch": (
        lambda: conv(X, W, initial_state=torch.zeros(1, 8, 3)), ValueError,
        "initial_state has shape (1, 8, 3), expected (batch=2, channels=8, width-1=3)"),
    "state of a packed batch": (
        lambda: conv(X[:1], W, cu_seqlens=CU, initial_state=torch.zeros(2, 8, 3)), ValueError,
        "initial_state has shape (2, 8, 3), expected (sequences=1, channels=8, width-1=3)"),
    "state of another dtype": (
        lambda: conv(X.bfloat16(), W, initial_state=torch.zeros(2, 8, 3)), TypeError,
        "initial_state has dtype float32, expected bfloat16"),
    "packed and a batch": (
        lambda: conv(X, W, cu_seqlens=CU), ValueError,
        "x has shape (2, 5, 8), expected (batch=1, time, channels), since cu_seqlens is given"),
    "cu_seqlens of 16 bits": (
        lambda: conv(X[:1], W, cu_seqlens=CU.short()), TypeError,
        "cu_seqlens has dtype int16, expected int32 or int64"),
    "cu_seqlens of two dimensions": (
        lambda: conv(X[:1], W, cu_seqlens=CU[None]), ValueError,
        "cu_seqlens has shape (1, 2), expected (sequences + 1,)"),
    "jax, packed and a batch": (
        lambda: retrograd.jax.causal_conv1d(
            jnp.zeros((2, 5, 8)), jnp.zeros((8, 4)), cu_seqlens=jnp.zeros(2, jnp.int32)),
        ValueError, "x has shape (2, 5, 8), expected (batch=1, time, channels), since cu_seqlens is given"),
    "jax, x a list": (
        lambda: retrograd.jax.causal_conv1d([1.0], jnp.zeros((8, 4))), TypeError,  # type: ignore[call-overload]
        "x is list, expected a jax.Array"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_names_the_argument_and_what_was_expected(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == NAME + text


def test_a_step_of_generation_says_what_it_takes() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        update(X[0, 0], torch.zeros(2, 8, 3), W)
    expected = "(batch, channels) or (batch, time, channels)"
    assert str(caught.value) == f"causal_conv1d_update: x has shape (8,), expected {expected}"


def test_more_steps_than_kernels_can_count_are_refused() -> None:
    steps = torch.zeros(1, 1, 8, device="meta").expand(1, 2**31, 8)
    for call in (conv, lambda x, w: update(x, torch.zeros(1, 8, 3, device="meta"), w)):
        with pytest.raises(
            ValueError, match=r"^causal_conv1d(_update)?: x has shape .*, expected at most 2147221504 steps"
        ):
            call(steps, W.to("meta"))
