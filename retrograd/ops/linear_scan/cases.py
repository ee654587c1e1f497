"""Named shapes of linear_scan: typical calls, and shapes that have broken kernels."""

from __future__ import annotations

from typing import Any

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = SMALL | {"strided"}
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})
BENCH = frozenset({"bench"})


def case(
    name: str,
    shape: tuple[int, int, int],
    *,
    dtype: str = "float32",
    a: tuple[int, int, int] | None = None,
    a_dtype: str | None = None,
    decay: Tensor | None = None,
    initial: str | bool = False,
    packed: tuple[int, ...] | None = None,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case; `a` is the shape of a if it differs from that of b, `initial` the dtype of the initial state."""
    B, T, D = shape
    inputs = {
        # Most decays between 0.6 and 0.95, as gates produce them.
        "a": decay or Tensor(a or shape, a_dtype or dtype, mean=1.5, law="decay"),
        "b": Tensor(shape, dtype),
    }
    if initial:
        state = "complex64" if dtype == "complex64" else "float32"
        inputs["initial_state"] = Tensor(
            (len(packed) - 1 if packed else B, D), initial if isinstance(initial, str) else state
        )
    if packed:
        inputs["cu_seqlens"] = Tensor((len(packed),), "int32", values=packed)
    return Case(name, inputs, options, tags, {"B": B, "T": T, "D": D})


BOTH: dict[str, Any] = {"initial": True, "return_final_state": True}
BF16: dict[str, Any] = {"dtype": "bfloat16"}
C64: dict[str, Any] = {"dtype": "complex64"}

TEST_CASES: list[Case] = [
    case("plain", (2, 24, 8), tags=STRIDED),
    case("odd", (3, 37, 11), tags=SMALL),
    case("bf16", (2, 40, 16), **BF16),
    case("fp16", (2, 23, 8), dtype="float16", tags=SMALL),
    case("fp32_decay", (4, 29, 36), a_dtype="float32", **BF16, **BOTH, tags=STRIDED),
    case("bf16_decay", (2, 29, 12), a_dtype="bfloat16"),
    case("states", (4, 30, 33), **BOTH, tags=STRIDED),
    case("final_state", (2, 12, 32), return_final_state=True),
    case("bf16_state", (4, 12, 32), initial="bfloat16", return_final_state=True, **BF16, tags=SMALL),
    case("reverse", (2, 33, 9), reverse=True),
    case("reverse_states", (4, 33, 33), reverse=True, **BOTH, tags=STRIDED),
    case("one_step", (5, 1, 32), **BOTH, tags=SMALL),
    case("one_channel", (16, 20, 1), **BOTH, tags=SMALL),
    case("one_number", (1, 1, 1)),
    case("shared_channels", (4, 21, 34), a=(4, 21, 1), **BOTH, tags=STRIDED),
    case("shared_batch", (3, 21, 10), a=(1, 21, 10), tags=SMALL),
    case("shared_both", (4, 21, 34), a=(1, 21, 1), reverse=True, **BOTH, tags=SMALL),
    case("shared_channels_bf16", (2, 21, 20), a=(2, 21, 1), **BF16),
    case("complex", (4, 26, 33), **C64, **BOTH, tags=STRIDED),
    case("complex_reverse", (1, 35, 3), reverse=True, **C64, tags=SMALL),
    case("complex_shared", (4, 18, 33), a=(1, 18, 1), **C64, **BOTH),
    case("packed", (1, 60, 33), packed=(0, 1, 17, 17, 60), **BOTH, tags=STRIDED),
    case("packed_reverse", (1, 45, 9), packed=(0, 20, 45), reverse=True, tags=SMALL),
    case("packed_outside", (1, 50, 65), packed=(3, 3, 20, 41, 41), **BOTH, tags=SMALL),
    case("packed_shared", (1, 40, 66), packed=(0, 7, 40), a=(1, 40, 1), **BOTH),
    case("packed_complex", (1, 40, 66), packed=(0, 33, 40), **C64, **BOTH, tags=SMALL),
    case("no_decay", (4, 28, 34), decay=Tensor((4, 28, 34), "float32", mean=1.0, std=0.0), **BOTH, tags=SMALL),
    case("no_memory", (4, 28, 34), decay=Tensor((4, 28, 34), "float32", std=0.0), **BOTH),
    case("negative", (2, 28, 6), decay=Tensor((2, 28, 6), "float32", std=0.5)),
    case("no_time", (2, 0, 8), **BOTH, tags=SMALL),
    case("no_batch", (0, 9, 8), **BOTH, tags=SMALL),
    case("no_channels", (2, 9, 0), tags=SMALL),
    case("long", (1, 1100, 48), **BOTH),
    case("longer", (2, 2603, 2), reverse=True),
    case("packed_long", (1, 2100, 32), packed=(0, 1030, 1031, 2100), **BOTH),
    case("wide", (2, 65, 300), **BF16),
]

GPU_CASES: list[Case] = [
    case("gpu_tiles", (3, 700, 70), **BOTH, tags=GPU),
    case("gpu_groups", (4, 5_003, 40), **BOTH, tags=GPU),
    case("gpu_groups_reverse", (1, 6_500, 136), reverse=True, **BOTH, tags=GPU),
    case("gpu_bf16", (2, 2_500, 130), a_dtype="float32", **BF16, **BOTH, tags=GPU),
    case("gpu_complex", (4, 2_501, 33), **C64, **BOTH, tags=GPU),
    case("gpu_shared", (2, 2_500, 100), a=(1, 2_500, 1), **BOTH, tags=GPU),
    case("gpu_packed", (1, 7_000, 48), packed=(0, 511, 512, 512, 4_000, 6_990, 7_000), **BOTH, tags=GPU),
    case("gpu_packed_outside", (1, 7_000, 48), packed=(100, 100, 3_000, 6_500, 6_500), **BOTH, tags=GPU),
    case("gpu_wide", (4, 1_000, 2_048), **BOTH, tags=GPU),
]

CURVE = tuple(2**i for i in range(5, 17))

BENCH_CASES: list[Case] = [
    case("B8_T4096_D2048", (8, 4096, 2048), tags=BENCH),
    case("B1_T65536_D1536", (1, 65536, 1536), tags=BENCH),
    case("B1_T1048576_D64", (1, 1 << 20, 64), tags=BENCH),
    *(case(f"B8_T{T}_D2048", (8, T, 2048), tags=BENCH) for T in CURVE if T != 4096),
]

CASES: list[Case] = TEST_CASES + GPU_CASES + BENCH_CASES
