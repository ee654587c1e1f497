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
GPU_CASES: list[Case] = []
BENCH_CASES: list[Case] = []
CASES = [*TEST_CASES, *GPU_CASES, *BENCH_CASES]
