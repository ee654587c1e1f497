"""Named shapes of rms_norm: typical calls, and shapes that have broken kernels."""

from __future__ import annotations

from typing import Any

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = SMALL | {"strided"}
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})


def case(
    name: str,
    shape: tuple[int, ...],
    *,
    dtype: str = "bfloat16",
    weight: tuple[int, ...] | bool | None = True,
    weight_dtype: str = "float32",
    bias: bool = False,
    residual: str | None = None,
    gate: str | None = None,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case; `weight` True means (N,), `residual` and `gate` are dtypes."""
    inputs = {"x": Tensor(shape, dtype)}
    weight_shape = shape[-1:] if weight is True else weight
    if weight_shape:
        inputs["weight"] = Tensor(weight_shape, weight_dtype, mean=1.0 - options.get("weight_offset", 0.0), std=0.3)
    if bias:
        inputs["bias"] = Tensor(weight_shape or shape[-1:], weight_dtype)
    if residual:
        inputs["residual"] = Tensor(shape, residual)
    if gate:
        inputs["gate"] = Tensor(shape, gate)
    N = options.get("group_size") or shape[-1]
    size = 1
    for dim in shape:
        size *= dim
    return Case(name, inputs, options, tags, {"M": size // N if N else 0, "N": N})


TEST_CASES: list[Case] = [
    case("plain", (4, 64), tags=STRIDED),
    case("plain_fp32", (3, 5, 48), dtype="float32", tags=SMALL),
    case("plain_fp16", (7, 32), dtype="float16", weight_dtype="float16", tags=SMALL),
    case("no_weight", (5, 40), weight=None, tags=SMALL),
    case("one_column", (6, 1), dtype="float32", eps=0.1, tags=SMALL),
    case("one_row", (100,), tags=SMALL),
    case("odd_columns", (9, 67), tags=STRIDED),
    case("bf16_weight", (4, 96), weight_dtype="bfloat16", tags=SMALL),
    case("gemma", (2, 3, 64), weight_offset=1.0, eps=1e-5, tags=SMALL),
    case("bias", (5, 33), bias=True, tags=SMALL),
    case("bias_alone", (5, 32), weight=None, bias=True, tags=SMALL),
    case("qk_norm", (2, 3, 4, 32), weight=(4, 32), tags=SMALL),
    case("qk_norm_bias", (2, 5, 2, 16), weight=(2, 16), bias=True, dtype="float32", tags=STRIDED),
    case("residual", (4, 64), residual="bfloat16", tags=SMALL),
    case("prenorm", (4, 64), residual="bfloat16", prenorm=True, tags=SMALL),
    case("prenorm_fp32_stream", (4, 48), residual="float32", prenorm=True, tags=STRIDED),
    case("prenorm_narrow_stream", (4, 48), dtype="float32", residual="bfloat16", prenorm=True, tags=SMALL),
    case("prenorm_alone", (4, 48), prenorm=True, tags=SMALL),
    case("gate_before", (4, 64), gate="bfloat16", tags=SMALL),
    case("gate_after", (4, 64), gate="bfloat16", norm_before_gate=True, bias=True, tags=STRIDED),
    case("gate_no_weight", (4, 40), gate="float32", weight=None, norm_before_gate=True, tags=SMALL),
    case("gate_sigmoid", (4, 48), dtype="float32", residual="float32", prenorm=True, gate="float32",
         gate_activation="sigmoid", tags=SMALL),
    case("kimi", (2, 5, 2, 128), gate="bfloat16", norm_before_gate=True, gate_activation="sigmoid", tags=SMALL),
    case("groups", (3, 5, 96), group_size=32, tags=SMALL),
    case("mamba2", (2, 4, 96), gate="bfloat16", group_size=48, tags=STRIDED),
    case("mamba2_gate_after", (2, 4, 64), gate="float16", group_size=16, norm_before_gate=True, bias=True, tags=SMALL),
    case("out_fp32", (4, 64), out_dtype="float32", tags=SMALL),
    case("everything", (2, 3, 64), residual="float32", gate="bfloat16", bias=True, prenorm=True, group_size=32,
         weight_offset=1.0, out_dtype="float16", tags=STRIDED),
    case("empty_rows", (0, 64), tags=SMALL),
    case("empty_batch_bias", (3, 0, 32), bias=True, residual="bfloat16", prenorm=True, tags=SMALL),
    case("hidden_768", (2, 37, 768)),
    case("hidden_1536", (65, 1536), residual="bfloat16", prenorm=True),
    case("hidden_4096", (33, 4096)),
    case("many_rows", (1031, 128)),
    case("wide_8192", (5, 8192), dtype="float16"),
    case("looped_backward", (3, 20000)),
    case("looped", (3, 40000), residual="bfloat16", prenorm=True, bias=True, tags=TEST | {"strided"}),
    case("widest", (2, 262144), dtype="float32"),
]  # fmt: skip

GPU_CASES: list[Case] = [
    case("gpu_narrow", (40_000, 128), tags=GPU),
    case("gpu_4096", (4_099, 4096), tags=GPU | {"strided"}),
    case("gpu_looped_gated", (129, 36_000), gate="bfloat16", tags=GPU),
    case("gpu_qk_norm", (4, 1_021, 24, 128), weight=(24, 128), tags=GPU | {"strided"}),
    case("gpu_prenorm", (2_051, 5120), residual="float32", prenorm=True, tags=GPU | {"strided"}),
    case("gpu_gated_8192", (515, 8192), gate="bfloat16", tags=GPU),
    case("gpu_gated_5000", (300, 5000), gate="float16", dtype="float16", norm_before_gate=True, tags=GPU | {"strided"}),
    case("gpu_ring", (300, 20_000), tags=GPU | {"strided"}),
    case("gpu_ring_widest", (137, 32_768), dtype="float16", weight_dtype="float16", tags=GPU),
    case("gpu_mamba2", (2_051, 4096), gate="bfloat16", group_size=512, tags=GPU | {"strided"}),
]

GRID_M = (4096, 8192, 16384, 32768, 65536)
GRID_N = (256, 512, 1024, 2048, 4096, 8192)
BENCH = frozenset({"bench"})

BENCH_CASES: list[Case] = [
    *(case(f"M{m}_N{n}", (m, n), tags=BENCH) for n in GRID_N for m in GRID_M),
    case("M8192_N32768", (8192, 32768), tags=BENCH),
    case("M65536_N128", (65536, 128), tags=BENCH),
    *(
        case(f"prenorm_M{m}_N{n}", (m, n), residual="bfloat16", prenorm=True, tags=BENCH)
        for m, n in ((65536, 1024), (32768, 4096), (16384, 8192))
    ),
    *(
        case(f"gated_M{m}_N{n}", (m, n), gate="bfloat16", tags=BENCH)
        for m, n in ((65536, 1024), (32768, 4096), (16384, 8192))
    ),
]

CASES: list[Case] = TEST_CASES + GPU_CASES + BENCH_CASES
