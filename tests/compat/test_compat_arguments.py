"""The stand-ins refuse non-tensors, non-strided tensors, other devices, unsupported dtypes and non-boolean flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from retrograd.compat.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from retrograd.compat.liger import liger_fused_add_rms_norm, liger_rms_norm
from retrograd.compat.mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from retrograd.compat.mamba_ssm.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn
from retrograd.compat.mamba_ssm.ops.triton.layernorm_gated import layernorm_fn, rmsnorm_fn
from retrograd.compat.mamba_ssm.ops.triton.selective_state_update import selective_state_update
from retrograd.compat.mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
)
from retrograd.compat.quack import rmsnorm, rmsnorm_bwd, rmsnorm_fwd

BATCH, DIM, STEPS, STATES, RANK, WIDTH = 2, 6, 5, 4, 3, 4
ROWS = torch.ones(BATCH, STEPS, DIM)
CHANNELS = torch.ones(DIM)
TIME_LAST = torch.ones(BATCH, DIM, STEPS)
STEP = torch.ones(BATCH, DIM)
INDEX = torch.zeros(BATCH, dtype=torch.int32)
NORM: dict[str, Any] = {"x": ROWS, "weight": CHANNELS, "bias": CHANNELS}
HEADS, P = 3, 2  # of Mamba-2, DIM = HEADS * P
BY_HEAD, HEAD_ROWS = torch.ones(HEADS), torch.ones(BATCH, STEPS, HEADS, P)
FILTER: dict[str, Any] = {"weight": torch.ones(DIM, WIDTH), "bias": CHANNELS}

GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    causal_conv1d_fn: {
        "x": TIME_LAST,
        **FILTER,
        "initial_states": torch.ones(BATCH, DIM, WIDTH - 1),
        "final_states_out": torch.ones(BATCH, DIM, WIDTH - 1),
        "return_final_states": True,
    },
    causal_conv1d_update: {
        "x": STEP,
        "conv_state": torch.ones(BATCH, DIM, WIDTH),
        **FILTER,
        "cache_seqlens": INDEX,
        "conv_state_indices": INDEX,
    },
    selective_scan_fn: {
        "u": TIME_LAST,
        "delta": TIME_LAST,
        "A": -torch.ones(DIM, STATES),
        "B": torch.ones(BATCH, STATES, STEPS),
        "C": torch.ones(BATCH, 2, STATES, STEPS),
        "D": CHANNELS,
        "z": TIME_LAST,
        "delta_bias": CHANNELS,
        "delta_softplus": True,
        "return_last_state": True,
    },
    mamba_inner_fn: {
        "xz": torch.ones(BATCH, 2 * DIM, STEPS),
        "conv1d_weight": torch.ones(DIM, 1, WIDTH),
        "conv1d_bias": CHANNELS,
        "x_proj_weight": torch.ones(RANK + STATES, DIM),
        "delta_proj_weight": torch.ones(DIM, RANK),
        "out_proj_weight": torch.ones(3, DIM),
        "out_proj_bias": torch.ones(3),
        "A": -torch.ones(DIM, STATES),
        "B": torch.ones(DIM, STATES),
        "D": CHANNELS,
        "delta_bias": CHANNELS,
        "C_proj_bias": torch.ones(STATES),
        "delta_softplus": True,
        "c_rms_weight": torch.ones(STATES),
        "dt_rms_weight": CHANNELS,
    },
    selective_state_update: {
        "state": torch.ones(BATCH, DIM, STATES),
        "x": STEP,
        "dt": STEP,
        "A": -torch.ones(DIM, STATES),
        "B": torch.ones(BATCH, STATES),
        "C": torch.ones(BATCH, 1, STATES),
        "D": CHANNELS,
        "z": STEP,
        "dt_bias": CHANNELS,
        "dt_softplus": True,
        "state_batch_indices": INDEX,
    },
    mamba_chunk_scan_combined: {
        "x": HEAD_ROWS,
        "dt": torch.ones(BATCH, STEPS, HEADS),
        "A": -BY_HEAD,
        "B": torch.ones(BATCH, STEPS, 1, STATES),
        "C": torch.ones(BATCH, STEPS, 1, STATES),
        "chunk_size": 4,
        "D": BY_HEAD,
        "z": HEAD_ROWS,
        "dt_bias": BY_HEAD,
        "initial_states": torch.ones(BATCH, HEADS, P, STATES),
        "dt_softplus": True,
        "return_final_states": True,
        "return_varlen_states": False,
    },
    mamba_split_conv1d_scan_combined: {
        "zxbcdt": torch.ones(BATCH, STEPS, 2 * DIM + 2 * STATES + HEADS),
        "conv1d_weight": torch.ones(DIM + 2 * STATES, WIDTH),
        "conv1d_bias": torch.ones(DIM + 2 * STATES),
        "dt_bias": BY_HEAD,
        "A": -BY_HEAD,
        "D": torch.ones(HEADS, P),
        "chunk_size": 4,
        "initial_states": torch.ones(BATCH, HEADS, P, STATES),
        "return_final_states": True,
        "rmsnorm_weight": CHANNELS,
        "outproj_weight": torch.ones(4, DIM),
        "outproj_bias": torch.ones(4),
        "norm_before_gate": True,
    },
    rms_norm_fn: {
        **NORM,
        "residual": ROWS,
        "rowscale": torch.ones(BATCH, STEPS),
        "prenorm": True,
        "residual_in_fp32": True,
    },
    layer_norm_fn: {**NORM, "is_rms_norm": True},
    rmsnorm_fn: {**NORM, "z": ROWS, "norm_before_gate": True},
    layernorm_fn: {**NORM, "is_rms_norm": True},
    liger_rms_norm: {"X": ROWS, "W": CHANNELS, "eps": 1e-6},
    liger_fused_add_rms_norm: {"X": ROWS, "R": ROWS, "W": CHANNELS, "eps": 1e-6},
    rmsnorm: {**NORM, "residual": ROWS},
    rmsnorm_fwd: {**NORM, "residual": ROWS, "store_rstd": True},
    rmsnorm_bwd: {
        "x": ROWS,
        "weight": CHANNELS,
        "dout": ROWS,
        "rstd": torch.ones(BATCH, STEPS),
        "dresidual_out": ROWS,
        "has_bias": True,
        "has_residual": True,
    },
}
REFUSED_BY = {layer_norm_fn: "rms_norm_fn", layernorm_fn: "rmsnorm_fn"}  # the functions that they call
NORMS_OF_OTHERS = (liger_rms_norm, liger_fused_add_rms_norm, rmsnorm, rmsnorm_fwd, rmsnorm_bwd)
NO_TENSORS: list[Callable[[Tensor], Any]] = [
    lambda good: 1.0,
    lambda good: good.tolist(),
    lambda good: good.numpy(),
    lambda good: good.to_sparse(),
    lambda good: torch.nested.as_nested_tensor([good, good[:1]]),
]


def arguments(kind: type, *leave_out: Callable[..., Any]) -> list[Any]:
    return [
        pytest.param(function, name, id=f"{function.__name__}-{name}")
        for function, good in GOOD.items()
        for name, value in good.items()
        if isinstance(value, kind) and function not in leave_out
    ]


@pytest.mark.parametrize("function", GOOD, ids=lambda function: function.__name__)
def test_what_is_varied_below_is_right(function: Callable[..., Any]) -> None:
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in GOOD[function].items()}
    function(**copies)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("function", "name"), arguments(Tensor))
def test_what_is_no_strided_tensor_is_refused_by_name(function: Callable[..., Any], name: str) -> None:
    for make in NO_TENSORS:
        with pytest.raises(
            TypeError, match=rf"^{REFUSED_BY.get(function, function.__name__)}: {name} (is|has layout) "
        ):
            function(**(GOOD[function] | {name: make(GOOD[function][name])}))


@pytest.mark.parametrize(("function", "name"), arguments(Tensor))
def test_a_tensor_on_another_device_is_refused_by_name(function: Callable[..., Any], name: str) -> None:
    good = GOOD[function]
    named = r"\w+" if name == next(iter(good)) else name  # the devices of the others are compared with the first's
    with pytest.raises(ValueError, match=rf"^{REFUSED_BY.get(function, function.__name__)}: device of {named} is "):
        function(**(good | {name: good[name].to("meta")}))


@pytest.mark.parametrize(("function", "name"), arguments(Tensor, *NORMS_OF_OTHERS))
@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn], ids=str)
def test_a_foreign_dtype_is_refused_by_name(function: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"^{REFUSED_BY.get(function, function.__name__)}: {name} has dtype "):
        function(**(GOOD[function] | {name: GOOD[function][name].to(dtype)}))


@pytest.mark.parametrize(("function", "name"), arguments(bool))
def test_what_is_no_flag_is_refused_by_name(function: Callable[..., Any], name: str) -> None:
    for value in (None, 2, 0.5, "yes", [True], np.True_, torch.tensor(True), torch.tensor([True, False])):
        with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: {name} is "):
            function(**(GOOD[function] | {name: value}))


@pytest.mark.parametrize("function", GOOD, ids=lambda function: function.__name__)
def test_tensors_without_numbers_are_taken_together(function: Callable[..., Any]) -> None:
    everywhere = {n: value.to("meta") if isinstance(value, Tensor) else value for n, value in GOOD[function].items()}
    results = function(**everywhere)
    assert all(result.is_meta for result in (results if isinstance(results, tuple) else (results,)))


def test_sequences_are_not_counted_without_numbers() -> None:
    seq_idx = torch.zeros(BATCH, STEPS, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match=r"^causal_conv1d_fn: device of seq_idx is 'meta'"):
        causal_conv1d_fn(TIME_LAST.to("meta"), FILTER["weight"].to("meta"), seq_idx=seq_idx)


@pytest.mark.parametrize("mode", [torch.tensor([1, 0]), ["llama"], None])
def test_a_casting_mode_is_a_name_or_a_number(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"^liger_rms_norm: casting_mode is "):
        liger_rms_norm(ROWS, CHANNELS, 1e-6, casting_mode=mode)
