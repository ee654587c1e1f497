"""The stand-ins for the RMS norms among mamba_ssm's Triton kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import compat_plain as plain
import pytest
import torch
from compat_calls import DIM, Draw, assert_same_function, drawing, zeros
from torch import Tensor

from retrograd.compat.mamba_ssm.ops.triton import layer_norm, layernorm, layernorm_gated


@pytest.fixture
def draw(seed: int) -> Draw:
    return drawing(seed)


@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_fn_adds_scales_and_normalises(draw: Draw, with_residual: bool, prenorm: bool) -> None:
    inputs: dict[str, Any] = {
        "x": draw(3, 5, DIM),
        "weight": draw(DIM),
        "bias": draw(DIM),
        "residual": draw(3, 5, DIM) if with_residual else None,
        "rowscale": draw(3, 5),
        "eps": 0.1,
    }

    def meant(x: Tensor, weight: Tensor, bias: Tensor, residual: Any, rowscale: Tensor, eps: float) -> Any:
        total = x * rowscale[..., None] + (0 if residual is None else residual)
        y = plain.rms_norm(total, weight, bias, eps)
        return (y, total) if prenorm else y

    assert_same_function(partial(layer_norm.rms_norm_fn, prenorm=prenorm), meant, inputs)
    assert_same_function(partial(layer_norm.layer_norm_fn, prenorm=prenorm, is_rms_norm=True), meant, inputs)


def test_the_names_of_the_references_compute_the_same(draw: Draw) -> None:
    x, weight, bias, z = draw(3, DIM), draw(DIM), draw(DIM), draw(3, DIM)
    for upcast in (False, True):
        found = layer_norm.rms_norm_ref(x, weight, bias, z, prenorm=True, upcast=upcast)
        assert all(map(torch.equal, found, layer_norm.rms_norm_fn(x, weight, bias, z, prenorm=True)))
        gated = layernorm_gated.rms_norm_ref(x, weight, bias, z, group_size=3, upcast=upcast)
        assert torch.equal(gated, layernorm_gated.rmsnorm_fn(x, weight, bias, z, group_size=3))
    with pytest.raises(NotImplementedError, match=r"^rms_norm_ref: dropout_mask is not supported"):
        layer_norm.rms_norm_ref(x, weight, bias, dropout_mask=torch.ones(3, DIM))  # type: ignore[arg-type]


def test_the_sum_of_rms_norm_fn_has_the_dtype_of_the_residual(draw: Draw) -> None:
    x, weight = draw(4, DIM).detach().bfloat16(), torch.ones(DIM, dtype=torch.float16)
    for residual, in_fp32, dtype in (
        (None, False, torch.bfloat16),
        (None, True, torch.float32),
        (x.float(), False, torch.float32),
        (x, True, torch.bfloat16),
    ):
        y, total = layer_norm.rms_norm_fn(x, weight, None, residual=residual, prenorm=True, residual_in_fp32=in_fp32)
        assert (y.dtype, total.dtype) == (torch.bfloat16, dtype)


@pytest.mark.parametrize("in_fp32", [False, True])
def test_the_stream_that_starts_with_x_may_be_written_into(in_fp32: bool) -> None:
    x, weight = torch.ones(2, DIM), torch.ones(DIM)
    _, total = layer_norm.rms_norm_fn(x, weight, None, prenorm=True, residual_in_fp32=in_fp32)
    total += 1
    assert torch.equal(x, torch.ones(2, DIM))


@pytest.mark.parametrize("scaled", ["rowscale", "dropout_p"])
def test_a_scaled_input_of_rms_norm_fn_is_rounded_as_a_part_of_the_sum_alone(draw: Draw, scaled: str) -> None:
    x, residual = draw(64, DIM).detach().bfloat16(), draw(64, DIM).detach().float()
    factor = draw(64).detach().float() if scaled == "rowscale" else torch.full((64,), 1 / 0.7)
    options: dict[str, Any] = {"rowscale": factor} if scaled == "rowscale" else {"dropout_p": 0.3}
    y, total = layer_norm.rms_norm_fn(x, torch.ones(DIM), None, residual, prenorm=True, **options)
    meant = x.double() * factor.double()[:, None]
    kept = meant if scaled == "rowscale" else torch.where(total == residual, 0, meant)
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    # Two roundings to float32, of the product and of the sum; bfloat16 for the product would be 2^-9.
    assert ((total - residual.double() - kept).abs() <= 2.0**-22 * (meant.abs() + residual.abs())).all()
    alone, narrow = layer_norm.rms_norm_fn(x, torch.ones(DIM), None, prenorm=True, **options)
    assert alone.dtype == narrow.dtype == torch.bfloat16


def test_dropout_of_rms_norm_fn_drops_and_scales() -> None:
    x = torch.ones(1000, 16)
    _, total = layer_norm.rms_norm_fn(x, torch.ones(16), None, dropout_p=0.5, prenorm=True)
    assert set(total.unique().tolist()) == {0.0, 2.0}
    assert 0.45 < (total == 0).float().mean() < 0.55  # 16,000 draws: 0.5 within 12 standard deviations


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("group_size", [None, 3])
@pytest.mark.parametrize("gated", [False, True])
def test_rmsnorm_fn_gates_and_groups(draw: Draw, gated: bool, group_size: int | None, norm_before_gate: bool) -> None:
    inputs = {
        "x": draw(4, DIM),
        "weight": draw(DIM),
        "bias": draw(DIM),
        "z": draw(4, DIM) if gated else None,
        "eps": 0.1,
    }

    def meant(x: Tensor, weight: Tensor, bias: Tensor, z: Tensor | None, eps: float) -> Tensor:
        gate = torch.ones_like(x) if z is None else torch.nn.functional.silu(z)
        if norm_before_gate:
            return plain.rms_norm(x, weight, bias, eps, group_size) * gate
        return plain.rms_norm(x * gate, weight, bias, eps, group_size)

    options: dict[str, Any] = {"group_size": group_size, "norm_before_gate": norm_before_gate}
    assert_same_function(partial(layernorm_gated.rmsnorm_fn, **options), meant, inputs)
    assert_same_function(partial(layernorm_gated.layernorm_fn, **options, is_rms_norm=True), meant, inputs)


def test_the_norms_are_modules_too(draw: Draw) -> None:
    x, z = draw(4, DIM).float(), draw(4, DIM).float()
    for module, more in ((layer_norm.RMSNorm(DIM), {}), (layernorm_gated.RMSNorm(DIM), {"z": z})):
        assert [name for name, _ in module.named_parameters()] == ["weight"]
        expected = plain.rms_norm(x, module.weight, eps=1e-5)
        expected = expected * torch.nn.functional.silu(z) if more else expected
        torch.testing.assert_close(module(x, **more), expected)  # float32
    dropping = layer_norm.RMSNorm(DIM, dropout_p=0.5)
    assert torch.equal(dropping.eval()(x), layer_norm.RMSNorm(DIM)(x))
    assert layernorm.RMSNorm is layer_norm.RMSNorm


SIGNATURES = {
    layer_norm.rms_norm_fn: "x weight bias residual x1 weight1 bias1 eps dropout_p rowscale prenorm residual_in_fp32"
    " return_dropout_mask",
    layer_norm.layer_norm_fn: "x weight bias residual x1 weight1 bias1 eps dropout_p rowscale prenorm residual_in_fp32"
    " is_rms_norm return_dropout_mask",
    layernorm_gated.rmsnorm_fn: "x weight bias z eps group_size norm_before_gate",
    layernorm_gated.layernorm_fn: "x weight bias z eps group_size norm_before_gate is_rms_norm",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_arguments_have_the_names_and_the_order_of_mamba_ssm(function: Callable[..., Any]) -> None:
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


@pytest.mark.parametrize("name", ["x1", "weight1", "bias1", "return_dropout_mask"])
def test_the_second_branch_of_rms_norm_fn_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"rms_norm_fn: {name} is not supported"):
        layer_norm.rms_norm_fn(zeros(2, DIM), zeros(DIM), None, **{name: True})  # type: ignore[arg-type]


@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_layer_norm_fn_adds_scales_and_normalises(draw: Draw, with_residual: bool, prenorm: bool) -> None:
    inputs: dict[str, Any] = {
        "x": draw(3, 5, DIM),
        "weight": draw(DIM),
        "bias": draw(DIM),
        "residual": draw(3, 5, DIM) if with_residual else None,
        "rowscale": draw(3, 5),
        "eps": 0.1,
    }

    def meant(x: Tensor, weight: Tensor, bias: Tensor, residual: Any, rowscale: Tensor, eps: float) -> Any:
        total = x * rowscale[..., None] + (0 if residual is None else residual)
        y = plain.layer_norm(total, eps) * weight + bias
        return (y, total) if prenorm else y

    assert_same_function(partial(layer_norm.layer_norm_fn, prenorm=prenorm), meant, inputs)


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("group_size", [None, 3])
@pytest.mark.parametrize("gated", [False, True])
def test_layernorm_fn_gates_and_groups(draw: Draw, gated: bool, group_size: int | None, norm_before_gate: bool) -> None:
    inputs = {
        "x": draw(4, DIM),
        "weight": draw(DIM),
        "bias": draw(DIM),
        "z": draw(4, DIM) if gated else None,
        "eps": 0.1,
    }

    def meant(x: Tensor, weight: Tensor, bias: Tensor, z: Tensor | None, eps: float) -> Tensor:
        gate = torch.ones_like(x) if z is None else torch.nn.functional.silu(z)
        normalised = plain.layer_norm(x if norm_before_gate else x * gate, eps, group_size) * weight + bias
        return normalised * gate if norm_before_gate else normalised

    options: dict[str, Any] = {"group_size": group_size, "norm_before_gate": norm_before_gate}
    assert_same_function(partial(layernorm_gated.layernorm_fn, **options), meant, inputs)
    module = layernorm_gated.LayerNorm(DIM, 0.1, **options).double()
    module.load_state_dict({"weight": inputs["weight"], "bias": inputs["bias"]})
    torch.testing.assert_close(module(inputs["x"], inputs["z"]), meant(**inputs))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norms_have_the_dtype_of_x_and_a_sum_in_that_of_the_residual(draw: Draw, dtype: torch.dtype) -> None:
    x, weight = draw(4, DIM).detach().to(dtype), torch.ones(DIM)
    for residual, in_fp32, expected in ((None, False, dtype), (None, True, torch.float32), (x.float(), False, None)):
        y, total = layer_norm.layer_norm_fn(x, weight, None, residual=residual, prenorm=True, residual_in_fp32=in_fp32)
        assert (y.dtype, total.dtype) == (dtype, expected or torch.float32)
        alone = layer_norm.layer_norm_fn(x, weight, None, residual=residual, residual_in_fp32=in_fp32)
        assert torch.equal(y, alone)  # type: ignore[arg-type]
    assert layernorm_gated.layernorm_fn(x, weight, None, x).dtype == dtype


def test_an_empty_batch_has_empty_layer_norms() -> None:
    weight = torch.ones(DIM)
    assert layernorm_gated.layernorm_fn(torch.zeros(0, DIM), weight, None).shape == (0, DIM)
    assert layer_norm.layer_norm_fn(torch.zeros(0, DIM), weight, None).shape == (0, DIM)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["x1", "weight1", "bias1", "return_dropout_mask"])
def test_the_second_branch_of_layer_norm_fn_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"layer_norm_fn: {name} is not supported"):
        layer_norm.layer_norm_fn(zeros(2, DIM), zeros(DIM), None, **{name: True})  # type: ignore[arg-type]


def test_layernorm_fn_names_a_group_size_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match=rf"^layernorm_fn: group_size is 4, expected a divisor .*, {DIM}"):
        layernorm_gated.layernorm_fn(zeros(2, DIM), zeros(DIM), None, group_size=4)


@pytest.mark.parametrize("name", ["weight", "bias", "residual", "rowscale", "dropout_p", "x"])
def test_rms_norm_fn_names_what_it_refuses(name: str) -> None:
    arguments: dict[str, Any] = {"x": zeros(2, DIM), "weight": zeros(DIM), "bias": None}
    bad = 1.0 if name == "dropout_p" else zeros() if name == "x" else zeros(7)
    with pytest.raises((ValueError, TypeError), match=f"^rms_norm_fn: {name} "):
        layer_norm.rms_norm_fn(**(arguments | {name: bad}))


@pytest.mark.parametrize("name", ["weight", "bias", "z", "x"])
def test_rmsnorm_fn_names_what_it_refuses(name: str) -> None:
    arguments: dict[str, Any] = {"x": zeros(2, DIM), "weight": zeros(DIM), "bias": None}
    with pytest.raises((ValueError, TypeError), match=f"^rmsnorm_fn: {name} "):
        layernorm_gated.rmsnorm_fn(**(arguments | {name: zeros() if name == "x" else zeros(7)}))
