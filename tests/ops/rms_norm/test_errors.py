"""Errors of wrong calls of rms_norm, before any launch: they name the argument, its value and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks.integration import PassThrough

from retrograd import rms_norm

X = torch.zeros(2, 4, 64)
BF16 = X.bfloat16()
W = torch.ones(64)

ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "x without dimensions": (
        lambda: rms_norm(torch.tensor(1.0)), ValueError,
        "rms_norm: x has shape (), expected (..., N)"),
    "x of integers": (
        lambda: rms_norm(torch.ones(4, 8, dtype=torch.int64)), TypeError,
        "rms_norm: x has dtype int64, expected float32 or bfloat16 or float16 or float64"),
    "x too wide": (
        lambda: rms_norm(torch.ones(1, 262145)), ValueError,
        "rms_norm: x has shape (1, 262145), expected at most 262144 columns to normalise together"),
    "weight of another width": (
        lambda: rms_norm(X, torch.ones(32)), ValueError,
        "rms_norm: weight has shape (32,), expected (N=64,) or (heads=4, N=64)"),
    "weight of another width, x a vector": (
        lambda: rms_norm(torch.ones(8), torch.ones(4)), ValueError,
        "rms_norm: weight has shape (4,), expected (N=8,)"),
    "weight a head, with groups": (
        lambda: rms_norm(X, torch.ones(4, 64), group_size=32), ValueError,
        "rms_norm: weight has shape (4, 64), expected (N=64,), since group_size is given"),
    "weight of lower precision": (
        lambda: rms_norm(X, W.bfloat16()), TypeError, "rms_norm: weight has dtype bfloat16, expected float32"),
    "weight of the other half": (
        lambda: rms_norm(BF16, W.half()), TypeError,
        "rms_norm: weight has dtype float16, expected float32 or bfloat16"),
    "bias unlike weight": (
        lambda: rms_norm(X, torch.ones(4, 64), bias=W), ValueError,
        "rms_norm: bias has shape (64,), expected the shape of weight, (4, 64)"),
    "offset without weight": (
        lambda: rms_norm(X, weight_offset=1.0), ValueError,
        "rms_norm: weight_offset is 1.0, expected 0.0, since weight is None"),
    "residual of another shape": (
        lambda: rms_norm(X, residual=torch.ones(2, 64)), ValueError,
        "rms_norm: residual has shape (2, 64), expected the shape of x, (2, 4, 64)"),
    "residual in float64": (
        lambda: rms_norm(BF16, residual=X.double()), TypeError,
        "rms_norm: residual has dtype float64, expected float32 or bfloat16 or float16"),
    "gate of another shape": (
        lambda: rms_norm(X, gate=torch.ones(4, 64)), ValueError,
        "rms_norm: gate has shape (4, 64), expected the shape of x, (2, 4, 64)"),
    "gate beside float64": (
        lambda: rms_norm(X.double(), gate=X), TypeError, "rms_norm: gate has dtype float32, expected float64"),
    "activation without gate": (
        lambda: rms_norm(X, gate_activation="sigmoid"), ValueError,
        "rms_norm: gate_activation is 'sigmoid', expected 'silu', since gate is None"),
    "activation unknown": (
        lambda: rms_norm(X, gate=X, gate_activation="swish"), ValueError,  # type: ignore[call-overload]
        "rms_norm: gate_activation is 'swish', expected 'silu' or 'sigmoid'"),
    "eps zero": (
        lambda: rms_norm(X, eps=0.0), ValueError,
        "rms_norm: eps is 0.0, expected at least 1.175e-38, the smallest normal float32"),
    "eps not a number": (
        lambda: rms_norm(X, eps=float("nan")), ValueError, "rms_norm: eps is nan, expected a finite number"),
    "offset infinite": (
        lambda: rms_norm(X, W, weight_offset=float("inf")), ValueError,
        "rms_norm: weight_offset is inf, expected a finite number"),
    "groups that do not divide": (
        lambda: rms_norm(X, group_size=48), ValueError,
        "rms_norm: group_size is 48, expected a divisor of the last dimension of x, 64"),
    "groups of nothing": (
        lambda: rms_norm(X, group_size=0), ValueError,
        "rms_norm: group_size is 0, expected a divisor of the last dimension of x, 64"),
    "groups of more columns than fit": (
        lambda: rms_norm(torch.ones(2, 0), group_size=2**20), ValueError,
        "rms_norm: group_size is 1048576, expected at most 262144 columns to normalise together"),
    "integers asked for": (
        lambda: rms_norm(X, out_dtype=torch.int32), TypeError,
        "rms_norm: out_dtype has dtype int32, expected float32 or bfloat16 or float16"),
}  # fmt: skip

# Values that are no tensor, float, int or dtype: PyTorch refuses them before a registered operator sees them.
WRONG_TYPES: dict[str, tuple[Callable[[], Any], str]] = {
    "x a list": (lambda: rms_norm([1.0, 2.0]), "rms_norm: x is list, expected a torch.Tensor"),  # type: ignore[call-overload]
    "x None": (lambda: rms_norm(None), "rms_norm: x is NoneType, expected a torch.Tensor"),  # type: ignore[call-overload]
    "weight a list": (lambda: rms_norm(X, [1.0] * 64), "rms_norm: weight is list, expected a torch.Tensor"),  # type: ignore[call-overload]
    "eps a string": (lambda: rms_norm(X, eps="1e-6"), "rms_norm: eps is str, expected a float"),  # type: ignore[call-overload]
    "eps a tensor": (lambda: rms_norm(X, eps=torch.tensor(1e-6)), "rms_norm: eps is Tensor, expected a float"),  # type: ignore[call-overload]
    "group_size a float": (
        lambda: rms_norm(X, group_size=16.0),  # type: ignore[call-overload]
        "rms_norm: group_size is float, expected an int or None",
    ),
    "norm_before_gate an int": (
        lambda: rms_norm(X, gate=X, norm_before_gate=1),  # type: ignore[call-overload]
        "rms_norm: norm_before_gate is int, expected a bool",
    ),
    "gate_activation None": (
        lambda: rms_norm(X, gate=X, gate_activation=None),  # type: ignore[call-overload]
        "rms_norm: gate_activation is NoneType, expected a str",
    ),
    "prenorm an int": (
        lambda: rms_norm(X, prenorm=1),  # type: ignore[call-overload]
        "rms_norm: prenorm is int, expected a bool",
    ),
    "out_dtype a string": (
        lambda: rms_norm(X, out_dtype="float16"),  # type: ignore[call-overload]
        "rms_norm: out_dtype is str, expected a torch.dtype or None",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_the_argument_what_came_and_what_was_expected(name: str) -> None:
    wrong, kind, text = ERRORS[name]
    with pytest.raises(kind) as raised:
        wrong()
    assert str(raised.value) == text


@pytest.mark.parametrize("name", ERRORS)
def test_the_registered_operator_raises_the_same_errors(name: str) -> None:
    wrong, kind, text = ERRORS[name]
    with PassThrough(), pytest.raises(kind) as raised:
        wrong()
    assert str(raised.value) == text


@pytest.mark.parametrize("name", ["weight of another width", "weight of lower precision", "eps zero"])
def test_an_error_reads_the_same_in_a_compiled_function(name: str) -> None:
    torch._dynamo.reset()
    wrong, _, text = ERRORS[name]
    with pytest.raises(RuntimeError) as raised:
        torch.compile(wrong, fullgraph=True, backend="eager")()
    assert text in str(raised.value)


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_an_argument_of_the_wrong_type_is_named(name: str) -> None:
    wrong, text = WRONG_TYPES[name]
    with pytest.raises(TypeError) as raised:
        wrong()
    assert str(raised.value) == text


def test_a_wrong_type_is_refused_after_an_equal_value_of_the_right_type() -> None:
    rms_norm(X, group_size=16)
    rms_norm(X, gate=X, norm_before_gate=True)
    rms_norm(X, eps=1.0)
    for wrong in ({"group_size": 16.0}, {"gate": X, "norm_before_gate": 1}, {"eps": True}):
        with pytest.raises(TypeError):
            rms_norm(X, **wrong)


def test_arrays_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^rms_norm: device of weight is 'meta', expected cpu, the device of x$"):
        rms_norm(X, torch.ones(64, device="meta"))


@pytest.mark.parametrize("option", ["eps", "weight_offset"])
def test_an_int_that_no_float_holds_is_refused_by_name(option: str) -> None:
    large: Any = {option: 10**400}
    with pytest.raises(ValueError, match=f"rms_norm: {option} is "):
        rms_norm(X, W, **large)
