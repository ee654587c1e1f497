"""The stand-in for mamba_ssm's mamba_inner_fn: values, saved arrays, copies and autocast."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import compat_plain as plain
import pytest
import torch
from compat_calls import (
    BATCH,
    DIM,
    GROUPS,
    RANK,
    STATES,
    STEPS,
    WIDTH,
    Draw,
    assert_same_function,
    decay,
    drawing,
    gradients,
    inner_inputs,
    zeros,
)
from torch import Tensor

import retrograd
from retrograd.compat.mamba_ssm.ops import selective_scan_interface
from retrograd.compat.mamba_ssm.ops.selective_scan_interface import mamba_inner_fn


@pytest.fixture
def draw(seed: int) -> Draw:
    return drawing(seed)


INNER_OPTIONS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "plain": lambda draw: {},
    "no options": lambda draw: {"conv1d_bias": None, "out_proj_bias": None, "D": None, "delta_bias": None},
    "no softplus": lambda draw: {"delta_softplus": False, "A": 0.01 * decay(draw).detach()},
    "biases": lambda draw: {"B_proj_bias": draw(STATES), "C_proj_bias": draw(STATES)},
    "norms": lambda draw: {
        "b_rms_weight": draw(STATES),
        "c_rms_weight": draw(STATES),
        "dt_rms_weight": draw(DIM),
        "b_c_dt_rms_eps": 0.1,
    },
    "norm and bias": lambda draw: {"B_proj_bias": draw(STATES), "b_rms_weight": draw(STATES)},
    "given B": lambda draw: {"B": draw(DIM, STATES), "x_proj_weight": draw(RANK + STATES, DIM)},
    "given B, bias of C": lambda draw: {
        "B": draw(BATCH, STATES, STEPS),
        "x_proj_weight": draw(RANK + STATES, DIM),
        "C_proj_bias": draw(STATES),
    },
    "given C": lambda draw: {
        "C": draw(BATCH, GROUPS, STATES, STEPS),
        "x_proj_weight": draw(RANK + STATES, DIM),
        "b_rms_weight": draw(STATES),
    },
    "given B and C": lambda draw: {
        "B": draw(BATCH, STATES, STEPS),
        "C": draw(DIM, STATES),
        "x_proj_weight": draw(RANK, DIM),
    },
    "complex": lambda draw: inner_inputs(draw, is_complex=True) | {"B_proj_bias": draw(2 * STATES)},
    "complex, given C": lambda draw: (
        inner_inputs(draw, is_complex=True)
        | {"C": draw(BATCH, STATES, 2 * STEPS), "x_proj_weight": draw(RANK + 2 * STATES, DIM)}
    ),
}


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("options", INNER_OPTIONS)
def test_mamba_inner_fn_is_its_parts_in_order(draw: Draw, options: str, level: int) -> None:
    inputs = inner_inputs(draw) | INNER_OPTIONS[options](draw)
    ours = partial(mamba_inner_fn, checkpoint_lvl=level)
    assert_same_function(ours, plain.mamba_inner, inputs)


def test_checkpoint_lvl_1_computes_again_and_changes_no_bit(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    convolve = retrograd.causal_conv1d

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(torch.is_grad_enabled())
        return convolve(*args, **kwargs)

    monkeypatch.setattr(selective_scan_interface.retrograd, "causal_conv1d", counted)
    inputs = inner_inputs(draw) | INNER_OPTIONS["norms"](draw)
    found = {level: gradients(mamba_inner_fn(**inputs, checkpoint_lvl=level), inputs) for level in (0, 1)}
    assert calls == [True, True, False]  # forward, forward, and again in the backward pass of level 1
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_checkpoint_lvl_1_keeps_neither_the_convolution_nor_the_step_sizes(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    storages: list[Any] = []
    scan = retrograd.selective_scan

    def seen(x: Tensor, dt: Tensor, *args: Any, **kwargs: Any) -> Any:
        storages.extend(t.untyped_storage()._weak_ref() for t in (x, dt))
        return scan(x, dt, *args, **kwargs)

    monkeypatch.setattr(selective_scan_interface.retrograd, "selective_scan", seen)
    inputs = inner_inputs(draw)
    for level, kept in ((0, True), (1, False)):
        storages.clear()
        out = mamba_inner_fn(**inputs, checkpoint_lvl=level)
        assert [not torch.UntypedStorage._expired(ref) for ref in storages] == [kept, kept]
        out.sum().backward()


def test_a_parameter_changed_before_the_backward_pass_is_noticed(draw: Draw) -> None:
    inputs = inner_inputs(draw)
    out = mamba_inner_fn(**inputs)
    with torch.no_grad():
        inputs["conv1d_weight"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_mamba_inner_fn_takes_a_transposed_projection_without_a_copy(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    xz = draw(BATCH, STEPS, 2 * DIM).mT
    inside: list[bool] = []

    def watched(function: Any) -> Any:
        def wrapped(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            tensor = kwargs.get("z", x)
            inside.append(tensor.untyped_storage().data_ptr() == xz.untyped_storage().data_ptr())
            return function(x, *args, **kwargs)

        return wrapped

    for name in ("causal_conv1d", "selective_scan"):
        monkeypatch.setattr(selective_scan_interface.retrograd, name, watched(getattr(retrograd, name)))
    mamba_inner_fn(**(inner_inputs(draw) | {"xz": xz}))
    assert inside == [True, True]


def test_under_autocast_the_projections_are_in_its_dtype(draw: Draw) -> None:
    inputs = {name: t.detach().float() for name, t in inner_inputs(draw).items()}
    inputs["xz"] = inputs["xz"].bfloat16()
    projections = ("x_proj_weight", "delta_proj_weight", "out_proj_weight", "out_proj_bias")
    found = []
    for autocast, tensors in (
        (True, inputs),
        (False, inputs | {name: inputs[name].bfloat16() for name in projections}),
    ):
        leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = mamba_inner_fn(**leaves)
        assert out.dtype == torch.bfloat16
        found.append([out, *gradients(out, leaves).values()])
    assert all(torch.equal(a.bfloat16(), b.bfloat16()) for a, b in zip(*found, strict=True))


def test_autocast_takes_float32_inputs_too(draw: Draw) -> None:
    leaves = {name: t.detach().float().requires_grad_() for name, t in inner_inputs(draw).items()}
    with torch.autocast("cpu", torch.bfloat16):
        out = mamba_inner_fn(**leaves)
    assert out.dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in gradients(out, leaves).values())


def test_mamba_inner_fn_compiles_as_one_graph(draw: Draw) -> None:
    inputs = {name: t.detach().float().requires_grad_() for name, t in inner_inputs(draw).items()}
    eager, compiled = mamba_inner_fn, torch.compile(mamba_inner_fn, fullgraph=True, backend="aot_eager")
    a, b = eager(**inputs), compiled(**inputs)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(gradients(a, inputs), gradients(b, inputs))


def test_the_first_name_of_mamba_inner_fn_declines_a_norm_of_the_step_sizes(draw: Draw) -> None:
    from retrograd.compat import mamba_ssm

    inputs = inner_inputs(draw)
    assert torch.equal(mamba_ssm.mamba_inner_fn(**inputs), mamba_inner_fn(**inputs))  # type: ignore[arg-type]
    assert mamba_ssm.mamba_inner_fn(**inputs, dt_rms_weight=draw(DIM)) is None
    assert inspect.signature(mamba_ssm.mamba_inner_fn) == inspect.signature(mamba_inner_fn)


def test_arguments_have_the_names_and_the_order_of_mamba_ssm() -> None:
    order = (
        "xz conv1d_weight conv1d_bias x_proj_weight delta_proj_weight out_proj_weight out_proj_bias A B C D delta_bias"
        " B_proj_bias C_proj_bias delta_softplus checkpoint_lvl b_rms_weight c_rms_weight dt_rms_weight b_c_dt_rms_eps"
    )
    assert " ".join(inspect.signature(mamba_inner_fn).parameters) == order


INNER_REFUSALS: dict[str, Any] = {
    "xz": zeros(BATCH, STEPS, 2 * DIM),
    "conv1d_weight": zeros(DIM, WIDTH),
    "conv1d_bias": zeros(1),
    "x_proj_weight": zeros(RANK + STATES, DIM),
    "delta_proj_weight": zeros(RANK),
    "out_proj_weight": zeros(5, DIM + 1),
    "out_proj_bias": zeros(4),
    "A": None,
    "B": zeros(STATES, DIM),
    "C": zeros(DIM, STATES, dtype=torch.complex128),
    "D": zeros(DIM, 2),
    "delta_bias": zeros(1),
    "B_proj_bias": zeros(DIM),
    "C_proj_bias": zeros(DIM),
    "checkpoint_lvl": 2,
    "b_rms_weight": zeros(DIM),
    "c_rms_weight": zeros(DIM),
    "dt_rms_weight": zeros(RANK),
    "b_c_dt_rms_eps": float("nan"),
}


@pytest.mark.parametrize("name", INNER_REFUSALS)
def test_mamba_inner_fn_names_what_it_refuses(draw: Draw, name: str) -> None:
    beside = {"b_rms_weight": zeros(STATES)} if name == "b_c_dt_rms_eps" else {}
    if name in ("B", "C"):
        beside = {"x_proj_weight": zeros(RANK + STATES, DIM)}
    named = "rms_norm: eps" if name == "b_c_dt_rms_eps" else f"mamba_inner_fn: {name}"
    with pytest.raises((ValueError, TypeError), match=rf"^{named} "):
        mamba_inner_fn(**(inner_inputs(draw) | beside | {name: INNER_REFUSALS[name]}))


def test_a_given_matrix_has_no_rows_in_the_projection(draw: Draw) -> None:
    text = f"x_proj_weight has shape {(RANK + 2 * STATES, DIM)}, expected (delta_rank + dstate, dim) = "
    with pytest.raises(ValueError, match=f"^mamba_inner_fn: {re.escape(text)}"):
        mamba_inner_fn(**inner_inputs(draw), B=draw(DIM, STATES))


@pytest.mark.parametrize("name", ["x_proj_weight", "out_proj_weight"])
def test_without_autocast_a_projection_of_another_dtype_is_refused(draw: Draw, name: str) -> None:
    inputs = inner_inputs(draw)
    with pytest.raises(TypeError, match=f"^mamba_inner_fn: {name} has dtype torch.float32, expected torch.float64"):
        mamba_inner_fn(**(inputs | {name: inputs[name].float()}))


def test_mamba_inner_fn_takes_the_meta_device(draw: Draw) -> None:
    inputs = {name: t.detach().to("meta") for name, t in inner_inputs(draw).items()}
    assert mamba_inner_fn(**inputs).shape == (BATCH, STEPS, 5)


@pytest.mark.parametrize("which", ["B_proj_bias", "b_rms_weight"])
def test_what_belongs_to_the_projected_B_is_refused_where_B_is_given(draw: Draw, which: str) -> None:
    arguments = inner_inputs(draw) | {"x_proj_weight": draw(RANK + STATES, DIM), which: draw(STATES)}
    with pytest.raises(NotImplementedError, match=f"mamba_inner_fn: {which} is not supported, since B is given"):
        mamba_inner_fn(**arguments, B=draw(DIM, STATES))


def test_norms_of_complex_matrices_are_refused(draw: Draw) -> None:
    with pytest.raises(NotImplementedError, match="mamba_inner_fn: c_rms_weight is not supported, since A is complex"):
        mamba_inner_fn(**inner_inputs(draw, is_complex=True), c_rms_weight=draw(2 * STATES))
