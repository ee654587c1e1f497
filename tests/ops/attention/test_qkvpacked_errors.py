"""attention_qkvpacked refuses what is wrong by its own names, in both frameworks, and takes numpy's arrays in JAX."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from checks.integration import PassThrough
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import retrograd
import retrograd.jax

ours: Any = retrograd.jax  # without its types: many arguments here are wrong
B, T, H, D = 2, 9, 2, 4
QKV = np.random.default_rng(0).standard_normal((B, T, 3, H, D)).astype("float32")
ROW, ENDS, ZEROS = QKV[:1], np.array([0, 5, T], "int32"), np.zeros((B, T), "int32")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "axes": ({"qkv": QKV[0]}, "qkv has shape (9, 3, 2, 4), expected (batch, steps, 3, heads, head size=1..512)"),
    "four arrays": (
        {"qkv": QKV[:, :4].swapaxes(1, 2)},
        "qkv has shape (2, 3, 4, 2, 4), expected (batch, steps, 3, heads, head size=1..512)"),
    "head size": (
        {"qkv": np.zeros((1, 2, 3, 1, 600), "float32")},
        "qkv has shape (1, 2, 3, 1, 600), expected (batch=1, steps=2, 3, heads=1, head size=1..512)"),
    "dtype": ({"qkv": QKV.astype("int32")}, "qkv has dtype int32, expected float32 or bfloat16 or float16 or float64"),
    "bias": (
        {"bias": QKV[:, 0, 0, 0]},
        "bias has shape (2, 4), expected (batch=2 or 1, heads=2 or 1, steps=9 or 1, steps=9 or 1)"),
    "dtype of a bias": (
        {"bias": np.zeros((1, 1, T, T), "float16")},
        "bias has dtype float16, expected float32"),
    "slopes": (
        {"alibi_slopes": np.zeros((3, 2), "float32")},
        "alibi_slopes has shape (3, 2), expected (heads=2,) or (batch=2, heads=2)"),
    "sinks": ({"sinks": np.zeros(3, "float32")}, "sinks has shape (3,), expected (heads=2,)"),
    "rows": (
        {"cu_seqlens": ENDS},
        "qkv has shape (2, 9, 3, 2, 4), expected (batch=1, steps, 3, heads, head size=1..512), "
        "since cu_seqlens is given"),
    "dtype of boundaries": ({"qkv": ROW, "cu_seqlens": ENDS > 0}, "cu_seqlens has dtype bool, expected int32 or int64"),
    "boundaries": (
        {"qkv": ROW, "cu_seqlens": ENDS + 1},
        "cu_seqlens[2] is 10, expected numbers that do not fall, from 0 to 9"),
    "ids": ({"segment_ids": ZEROS[:, :5]}, "segment_ids has shape (2, 5), expected (batch=2, steps=9)"),
    "ids and boundaries": (
        {"qkv": ROW, "cu_seqlens": ENDS, "segment_ids": ZEROS[:1]},
        "segment_ids is 'an array', expected None, since cu_seqlens is given"),
    "seed": ({"dropout_p": 0.1}, "dropout_seed is None, expected a seed, since dropout_p is 0.1"),
    "no seed": (
        {"dropout_p": 0.1, "dropout_seed": "x"},
        "dropout_seed is str, expected an int or an array without axes"),
    "window": ({"window": (1.0, 2)}, "window[0] is float, expected an int"),
    "flag": ({"return_lse": 1}, "return_lse is int, expected a bool"),
    "softcap": ({"softcap": -1.0}, "softcap is -1.0, expected a positive number"),
    "algorithm": ({"backward": "fast"}, "backward is 'fast', expected 'auto' or 'split' or 'fused'"),
}  # fmt: skip


def in_torch(given: dict[str, Any]) -> Any:
    return retrograd.attention_qkvpacked(**given)


def with_a_gradient(given: dict[str, Any]) -> Any:
    qkv = given["qkv"]
    return in_torch({**given, "qkv": qkv.clone().requires_grad_() if qkv.is_floating_point() else qkv})


def under_a_dispatch_mode(given: dict[str, Any]) -> Any:
    with PassThrough():
        return in_torch(given)


def in_jax(given: dict[str, Any]) -> Any:
    return ours.attention_qkvpacked(**{n: jnp.asarray(v) if is_array(v) else v for n, v in given.items()})


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def refusal(call: Callable[..., Any], changed: dict[str, Any]) -> str:
    given = {"qkv": QKV, **changed}
    if call is not in_jax:
        given = {name: torch.from_numpy(v.copy()) if is_array(v) else v for name, v in given.items()}
    with pytest.raises((ValueError, TypeError)) as raised:
        call(given)
    return str(raised.value)


@pytest.mark.parametrize("call", [in_torch, with_a_gradient, under_a_dispatch_mode, in_jax])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_by_its_own_names(name: str, call: Callable[..., Any]) -> None:
    changed, text = REFUSED[name]
    assert refusal(call, changed) == f"attention_qkvpacked: {text}"


@pytest.mark.parametrize("name", ["head size", "bias", "rows", "window", "flag"])
def test_a_compiled_function_says_the_same(name: str) -> None:
    changed, text = REFUSED[name]

    def compiled(given: dict[str, Any]) -> Any:
        torch._dynamo.reset()
        return torch.compile(in_torch, backend="eager")(given)

    with pytest.raises(Exception, match=re.escape(f"attention_qkvpacked: {text}")):
        compiled({n: torch.from_numpy(v.copy()) if is_array(v) else v for n, v in {"qkv": QKV, **changed}.items()})


def test_what_is_no_array_is_refused_by_name() -> None:
    values: tuple[Any, ...] = (None, 3, [1.0], "x", torch.ones(3).to_sparse())
    for value in values:
        for function in (retrograd.attention_qkvpacked, ours.attention_qkvpacked):
            with pytest.raises(TypeError, match=r"^attention_qkvpacked: qkv (is|has)"):
                function(value)


def test_tensors_of_other_layouts_and_devices_are_refused_by_name() -> None:
    qkv: Any = torch.from_numpy(QKV)
    for changed, text in (
        ({"qkv": qkv.to_sparse()}, "qkv has layout sparse_coo, expected strided"),
        ({"sinks": torch.zeros(H, device="meta")}, "device of sinks is 'meta', expected cpu, the device of qkv"),
        ({"dropout_seed": torch.ones((), requires_grad=True)}, "dropout_seed is 'a tensor that requires a gradient'"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^attention_qkvpacked: {re.escape(text)}"):
            in_torch({"qkv": qkv, **changed})


def test_an_array_that_is_not_divided_by_rows_is_refused_by_name() -> None:
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:1])
    qkv = jax.device_put(QKV, NamedSharding(mesh, PartitionSpec(None, "data")))
    with pytest.raises(ValueError, match=r"^attention_qkvpacked: qkv is sharded as .*, expected its first axis alone"):
        ours.attention_qkvpacked(qkv)


def test_arrays_of_numpy_are_taken_as_attention_takes_them() -> None:
    bias = np.zeros((1, 1, T, T), "float32")
    found = ours.attention_qkvpacked(ROW, bias=bias, cu_seqlens=ENDS, window=[3, 0])
    q, k, v = (jnp.asarray(ROW[:, :, i]) for i in range(3))
    expected = ours.attention(q, k, v, bias=bias, cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, window=(3, 0))
    np.testing.assert_array_equal(found, expected)
