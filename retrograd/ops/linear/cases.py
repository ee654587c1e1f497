"""Named shapes of linear: layers of models, and shapes that break kernels."""

from __future__ import annotations

from math import prod

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = SMALL | {"strided"}
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})
BENCH = frozenset({"bench"})


def case(
    name: str,
    batch: tuple[int, ...],
    N: int,
    K: int,
    dtype: str = "bfloat16",
    *,
    bias: bool = False,
    tags: frozenset[str] = SMALL,
) -> Case:
    """A case; weights are as small as those of an initialised layer."""
    inputs = {"x": Tensor((*batch, K), dtype), "weight": Tensor((N, K), dtype, std=max(K, 1) ** -0.5)}
    if bias:
        inputs["bias"] = Tensor((N,), dtype)
    return Case(name, inputs, {}, tags, {"M": prod(batch), "N": N, "K": K})


TEST_CASES = [
    case("plain", (5, 7), 48, 64, tags=STRIDED),
    case("bias", (3, 33), 40, 32, bias=True, tags=STRIDED),
    case("fp32", (2, 9), 24, 40, "float32", bias=True, tags=STRIDED),
    case("fp16", (35,), 33, 48, "float16"),
    case("odd", (2, 3, 5), 19, 37, bias=True, tags=STRIDED),
    case("odd_fp32", (21,), 17, 23, "float32"),
    case("one_row", (), 40, 64, bias=True),
    case("one_output", (9,), 1, 32),
    case("one_input", (9,), 24, 1, "float32"),
    case("empty_rows", (0, 3), 16, 32, bias=True),
    case("no_inputs", (4,), 8, 0, bias=True),
    case("no_outputs", (4,), 0, 8),
    case("many_rows", (3, 341), 72, 96, tags=TEST),
    case("long_sums", (5,), 24, 5000, "float32", tags=TEST),
    case("wide", (2, 33), 700, 130, bias=True, tags=TEST),
]
GPU_CASES = [
    case("gpu_row", (), 1024, 2048, tags=GPU),
    case("gpu_few", (3, 2), 4096, 1024, bias=True, tags=GPU),
    case("gpu_15", (15,), 520, 4096, "float16", tags=GPU),
    case("gpu_64", (64,), 1024, 1032, bias=True, tags=GPU),
    case("gpu_300", (2, 150), 2048, 1024, tags=GPU),
    case("gpu_fp16", (4, 500), 1000, 2056, "float16", bias=True, tags=GPU),
    case("gpu_parts", (5000,), 256, 128, tags=GPU),
    case("gpu_tiles", (2, 2048), 4096, 1024, bias=True, tags=GPU),
    case("gpu_odd", (700,), 1021, 515, bias=True, tags=GPU),
    case("gpu_fp32", (130,), 384, 1000, "float32", bias=True, tags=GPU),
]
# Layers of models of 370 million to 7 billion parameters: rows, outputs, inputs.
SHAPES = [
    *((rows, N, K) for rows in (1, 8, 64) for N, K in
      ((1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048), (4096, 4096), (8192, 2048), (50304, 1024))),
    *((rows, N, K) for rows in (128, 256, 512, 1024, 2048) for N, K in ((1024, 2048), (4096, 1024), (4096, 4096))),
    *((16384, N, K) for N, K in ((4096, 1024), (1024, 2048), (2048, 2048), (8192, 2048))),
    (8192, 50304, 1024),
    (4096, 4096, 4096),
]  # fmt: skip
BENCH_CASES = [case(f"M{M}_N{N}_K{K}", (M,), N, K, tags=BENCH) for M, N, K in SHAPES]
CASES = [*TEST_CASES, *GPU_CASES, *BENCH_CASES]
