"""Named shapes of causal_conv1d: typical calls, and shapes that have broken kernels."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = frozenset({"test", "interpreter", "strided"})
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})
BENCH = frozenset({"bench"})


def case(
    name: str,
    shape: tuple[int, int, int],
    width: int = 4,
    *,
    dtype: str = "bfloat16",
    weight_dtype: str | None = None,
    bias: bool = False,
    initial: bool = False,
    lengths: tuple[int, ...] | None = None,
    before: int = 0,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case; `lengths` are those of its packed sequences, `before` is the number of steps before them."""
    B, T, D = shape
    parameter = weight_dtype or dtype
    # Taps of this size keep the variance of the input.
    inputs = {"x": Tensor(shape, dtype), "weight": Tensor((D, width), parameter, std=width**-0.5)}
    if bias:
        inputs["bias"] = Tensor((D,), parameter, std=0.5)
    if initial:
        inputs["initial_state"] = Tensor((B if lengths is None else len(lengths), D, width - 1), dtype)
    if lengths is not None:
        bounds = tuple(accumulate(lengths, initial=before))
        inputs["cu_seqlens"] = Tensor((len(bounds),), "int32", values=bounds)
    return Case(name, inputs, options, tags, {"B": B, "T": T, "D": D, "W": width})


FINAL: dict[str, Any] = {"return_final_state": True}
SILU: dict[str, Any] = {"activation": "silu"}

TEST_CASES: list[Case] = [
    case("plain", (2, 9, 16), tags=STRIDED),
    case("silu", (2, 9, 16), tags=SMALL, **SILU),
    case("fp32", (3, 7, 24), dtype="float32", bias=True, tags=SMALL, **SILU),
    case("fp16", (2, 10, 8), dtype="float16", bias=True, tags=SMALL, **SILU),
    case("fp32_weight", (2, 6, 16), weight_dtype="float32", bias=True, tags=SMALL, **SILU),
    case("width_3", (2, 11, 8), 3, bias=True, tags=SMALL, **SILU),
    case("width_2", (2, 8, 8), 2, tags=SMALL),
    case("odd", (3, 13, 19), dtype="float32", bias=True, tags=SMALL, **SILU),
    case("one_channel", (2, 12, 1), bias=True, tags=SMALL, **SILU),
    case("one_step", (5, 1, 8), initial=True, bias=True, tags=SMALL, **SILU, **FINAL),
    case("states", (2, 9, 16), initial=True, bias=True, tags=STRIDED, **SILU, **FINAL),
    case("initial", (2, 7, 16), initial=True, tags=SMALL),
    case("final", (2, 7, 16), tags=SMALL, **SILU, **FINAL),
    case("short", (5, 2, 8), initial=True, bias=True, tags=SMALL, **SILU, **FINAL),
    case("packed", (1, 21, 16), lengths=(8, 1, 12), bias=True, tags=SMALL, **SILU),
    case("packed_states", (1, 17, 16), lengths=(5, 0, 2, 10, 0), initial=True, bias=True, tags=STRIDED,
         **SILU, **FINAL),
    case("packed_outside", (1, 30, 16), before=3, lengths=(0, 12, 9, 0), initial=True, bias=True, tags=SMALL,
         **SILU, **FINAL),
    case("packed_width_2", (1, 9, 8), 2, lengths=(3, 0, 0, 6), initial=True, dtype="float32", tags=SMALL, **FINAL),
    case("packed_nothing", (1, 0, 8), lengths=(0, 0), initial=True, tags=SMALL, **SILU, **FINAL),
    case("no_time", (2, 0, 8), initial=True, bias=True, tags=SMALL, **SILU, **FINAL),
    case("no_rows", (0, 5, 8), bias=True, tags=SMALL, **SILU),
    case("no_channels", (2, 5, 0), tags=SMALL),
    case("width_1", (2, 5, 8), 1, bias=True, initial=True, tags=SMALL, **SILU, **FINAL),
    case("width_7", (2, 9, 8), 7, bias=True, initial=True, tags=SMALL, **SILU, **FINAL),
    case("width_7_packed", (1, 20, 8), 7, lengths=(3, 0, 17), initial=True, dtype="float32", tags=SMALL,
         **SILU, **FINAL),
    case("width_5", (2, 10, 8), 5, bias=True, tags=SMALL, **SILU),
    case("width_8", (2, 19, 8), 8, dtype="float32", bias=True, initial=True, tags=STRIDED, **SILU, **FINAL),
    case("width_9", (2, 12, 8), 9, bias=True, initial=True, tags=SMALL, **SILU, **FINAL),
    case("width_64", (1, 50, 4), 64, dtype="float32"),
    case("many_steps", (2, 517, 40), bias=True, **SILU),
    case("many_channels", (1, 33, 1100), bias=True, initial=True, **SILU, **FINAL),
    case("many_sequences", (1, 300, 24), lengths=(1,) * 40 + (0,) * 5 + (130, 2, 128), initial=True, **SILU, **FINAL),
]  # fmt: skip

GPU_CASES: list[Case] = [
    case("gpu_long", (2, 5000, 1000), bias=True, initial=True, tags=GPU, **SILU, **FINAL),
    case("gpu_mamba", (4, 2048, 1536), bias=True, weight_dtype="float32", tags=GPU, **SILU),
    case("gpu_fp32", (2, 3001, 768), dtype="float32", bias=True, tags=GPU, **SILU),
    case("gpu_width_2", (3, 1025, 520), 2, dtype="float16", tags=GPU),
    case("gpu_width_7", (2, 3001, 512), 7, bias=True, initial=True, tags=GPU, **SILU, **FINAL),
    case("gpu_width_8_packed", (1, 6000, 512), 8, lengths=(1, 2000, 0, 3, 3996), initial=True, tags=GPU,
         **SILU, **FINAL),
    case("gpu_packed", (1, 6000, 512), lengths=(1, 2000, 0, 3, 3996), bias=True, initial=True, tags=GPU,
         **SILU, **FINAL),
    case("gpu_packed_outside", (1, 6000, 512), before=100, lengths=(0, 2000, 3399, 0), bias=True, initial=True,
         tags=GPU, **SILU, **FINAL),
    case("gpu_short_sequences", (1, 4096, 256), lengths=(7,) * 585 + (1,), initial=True, tags=GPU, **SILU, **FINAL),
]  # fmt: skip

BENCH_CASES: list[Case] = [
    case("B8_T4096_D4096", (8, 4096, 4096), tags=BENCH, **SILU),
    case("B8_T4096_D4096_linear", (8, 4096, 4096), tags=BENCH),
    case("B8_T4096_D4096_bias", (8, 4096, 4096), bias=True, tags=BENCH, **SILU),
    case("B1_T65536_D4096", (1, 65536, 4096), tags=BENCH, **SILU),
    case("B8_T4096_D4096_W7", (8, 4096, 4096), 7, tags=BENCH, **SILU),
]

CASES: list[Case] = TEST_CASES + GPU_CASES + BENCH_CASES
