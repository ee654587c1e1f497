"""Named shapes of selective_scan: typical calls, and shapes that have broken kernels."""

from __future__ import annotations

from typing import Any

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = frozenset({"test", "interpreter", "strided"})
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})
GPU_STRIDED = GPU | {"strided"}
BENCH = frozenset({"bench"})

MAMBA = frozenset({"z", "D", "dt_bias", "dt_softplus"})  # what Mamba's layer passes


def case(
    name: str,
    shape: tuple[int, int, int, int],
    *,
    dtype: str = "bfloat16",
    matrix_dtype: str | None = None,
    given: frozenset[str] | set[str] = frozenset({"dt_softplus", "dt_bias"}),
    groups: int | tuple[int | None, int | None] | None = None,
    constant: str = "",
    is_complex: bool = False,
    initial_state: bool = False,
    cu_seqlens: tuple[int, ...] | None = None,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case of shape (B, T, D, N).

    Args:
        name: its name.
        shape: batch, time, channels, states.
        dtype: of x, dt and z.
        matrix_dtype: of B and C; that of x by default.
        given: which of z, D, dt_bias and dt_softplus the call has.
        groups: of B and C, or of each.
        constant: which of B and C are constant in time: a part of "BC".
        is_complex: whether A, B, C and the states are complex.
        initial_state: whether the call has one.
        cu_seqlens: where the packed sequences begin and end.
        tags: see `Case`.
        options: other arguments.
    """
    batch, time, channels, N = shape
    pair = "complex64" if is_complex else "float32"
    inputs = {
        "x": Tensor((batch, time, channels), dtype),
        # Without softplus delta is dt itself, which has to be small and mostly positive.
        "dt": Tensor((batch, time, channels), dtype, *(() if "dt_softplus" in given else (0.1, 0.03))),
        "A": Tensor((channels, N), pair, std=0.5, law="negative"),
    }
    for letter, count in zip("BC", groups if isinstance(groups, tuple) else (groups, groups), strict=True):
        if letter in constant:
            inputs[letter] = Tensor((channels, N), pair)
        else:
            middle = () if count is None else (count,)
            inputs[letter] = Tensor((batch, time, *middle, N), pair if is_complex else matrix_dtype or dtype)
    if "D" in given:
        inputs["D"] = Tensor((channels,), "float32")
    if "z" in given:
        inputs["z"] = Tensor((batch, time, channels), dtype)
    if "dt_bias" in given:
        mean = -3.0 if "dt_softplus" in given else 0.1
        inputs["dt_bias"] = Tensor((channels,), "float32", mean=mean, std=0.5 if "dt_softplus" in given else 0.03)
    if initial_state:
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        inputs["initial_state"] = Tensor((sequences, channels, N), pair)
    if cu_seqlens is not None:
        inputs["cu_seqlens"] = Tensor((len(cu_seqlens),), "int32", values=cu_seqlens)
    options |= {"dt_softplus": True} if "dt_softplus" in given else {}
    letters = {"B": batch, "T": time, "D": channels, "N": N}
    shared = frozenset(constant)
    return Case(name, inputs, options, tags, letters, shared)


ALL: dict[str, Any] = {"given": MAMBA, "initial_state": True, "return_final_state": True}

TEST_CASES: list[Case] = [
    case("plain", (2, 9, 32, 4), given=frozenset(), tags=SMALL),
    case("mamba", (2, 21, 32, 16), given=MAMBA, tags=STRIDED),
    case("mamba_fp32", (2, 35, 32, 4), dtype="float32", given=MAMBA, tags=SMALL),
    case("mamba_fp16", (1, 17, 32, 4), dtype="float16", given=MAMBA),
    case("matrices_fp32", (2, 11, 32, 4), matrix_dtype="float32", given=MAMBA),
    case("gate_alone", (1, 5, 32, 2), given={"z"}),
    case("skip_alone", (1, 5, 32, 2), given={"D"}),
    case("bias_alone", (1, 5, 32, 2), given={"dt_bias"}),
    case("softplus_alone", (1, 5, 32, 2), given={"dt_softplus"}),
    case("one_state", (2, 20, 32, 1), given=MAMBA),
    case("three_states", (2, 20, 33, 3), given=MAMBA, tags=SMALL),
    case("eight_states", (2, 20, 34, 8), given=MAMBA, dtype="float32"),
    case("many_states", (1, 5, 32, 64), given=MAMBA, tags=SMALL),
    case("most_states", (2, 3, 16, 256), given={"z", "dt_softplus"}),
    case("odd_channels", (2, 19, 37, 4), given=MAMBA, tags=SMALL),
    case("one_channel", (2, 12, 1, 16), given={"z", "dt_softplus"}),
    case("one_step", (3, 1, 32, 4), tags=SMALL, **ALL),
    case("no_steps", (2, 0, 32, 4), tags=SMALL, **ALL),
    case("no_rows", (0, 5, 32, 4), tags=SMALL, **ALL),
    case("no_channels", (2, 5, 0, 4), **ALL),
    case("one_group", (2, 10, 32, 4), groups=1, given=MAMBA),
    case("groups", (2, 10, 36, 4), groups=3, given=MAMBA, tags=STRIDED),
    case("groups_apart", (1, 10, 36, 4), groups=(2, 4), dtype="float32", given=MAMBA),
    case("groups_of_B", (1, 10, 36, 4), groups=(2, None), dtype="float32", given=MAMBA, tags=SMALL),
    case("constant", (2, 10, 32, 4), constant="BC", given=MAMBA),
    case("constant_B", (2, 10, 32, 4), constant="B", given=MAMBA, tags=SMALL),
    case("constant_C", (2, 10, 32, 4), constant="C", groups=2, given=MAMBA),
    case("complex", (2, 20, 32, 3), is_complex=True, dtype="float32", given=MAMBA, tags=STRIDED),
    case("complex_everything", (2, 20, 32, 3), is_complex=True, groups=2, **ALL),
    case("complex_constant", (2, 10, 32, 2), is_complex=True, dtype="float32", constant="BC"),
    case("states", (2, 37, 32, 4), dtype="float32", tags=STRIDED, **ALL),
    case("initial_state", (2, 18, 32, 4), given=MAMBA, initial_state=True),
    case("final_state", (2, 18, 32, 4), given=MAMBA, return_final_state=True),
    case("packed", (1, 60, 32, 4), cu_seqlens=(0, 7, 7, 40, 41, 60), tags=STRIDED, **ALL),
    case("packed_fp32", (1, 60, 33, 3), dtype="float32", cu_seqlens=(0, 0, 33, 60, 60), tags=SMALL, **ALL),
    case("packed_plain", (1, 34, 32, 4), cu_seqlens=(0, 16, 34)),
    case("packed_groups", (1, 20, 32, 4), groups=2, cu_seqlens=(0, 3, 20), **ALL),
    case("packed_constant", (1, 20, 32, 4), constant="BC", cu_seqlens=(0, 3, 20), **ALL),
    case("packed_outside", (1, 40, 32, 4), dtype="float32", cu_seqlens=(3, 3, 20, 31, 31), tags=SMALL, **ALL),
    case("packed_no_steps", (1, 0, 32, 4), cu_seqlens=(0, 0, 0), **ALL),
    case("packed_complex", (1, 30, 32, 3), is_complex=True, cu_seqlens=(0, 7, 7, 30), dtype="float32", **ALL),
    case("long", (2, 300, 32, 16), given=MAMBA),
    case("long_states", (1, 150, 32, 64), dtype="float32", **ALL),
]

GPU_CASES: list[Case] = [
    case("gpu_mamba", (3, 500, 200, 16), given=MAMBA, tags=GPU),
    case("gpu_fp32", (2, 777, 192, 16), dtype="float32", tags=GPU, **ALL),
    case("gpu_plain", (2, 300, 128, 16), given=frozenset(), tags=GPU),
    case("gpu_gate", (1, 270, 128, 8), given={"z"}, dtype="float16", tags=GPU, return_final_state=True),
    case("gpu_bias", (2, 300, 64, 32), given={"dt_bias", "D"}, tags=GPU, initial_state=True),
    case("gpu_matrices_fp32", (2, 260, 128, 16), matrix_dtype="float32", given=MAMBA, tags=GPU),
    case("gpu_odd", (2, 300, 130, 16), given=MAMBA, tags=GPU),
    case("gpu_fp16", (2, 513, 128, 16), dtype="float16", tags=GPU_STRIDED, **ALL),
    case("gpu_eight", (2, 400, 256, 8), given=MAMBA, tags=GPU),
    case("gpu_32", (2, 400, 64, 32), given=MAMBA, tags=GPU),
    case("gpu_64", (2, 400, 64, 64), tags=GPU, **ALL),
    case("gpu_64_groups", (2, 700, 64, 64), groups=2, dtype="float16", tags=GPU, **ALL),
    case("gpu_256", (1, 550, 24, 256), given=MAMBA, tags=GPU),
    case("gpu_groups", (2, 300, 192, 16), groups=3, tags=GPU, **ALL),
    case("gpu_constant", (2, 300, 128, 16), constant="BC", tags=GPU, **ALL),
    case("gpu_packed", (1, 1000, 128, 16), cu_seqlens=(0, 1, 1, 500, 531, 999, 1000), tags=GPU_STRIDED, **ALL),
    case("gpu_packed_outside", (1, 1000, 128, 16), cu_seqlens=(17, 17, 400, 929, 929), tags=GPU, **ALL),
    case("gpu_long", (1, 3_000, 64, 16), given=MAMBA, tags=GPU),
    case("gpu_complex", (1, 300, 64, 8), is_complex=True, dtype="float32", tags=GPU, **ALL),
]


def bench(batch: int, channels: int, time: int, N: int, dtype: str = "bfloat16") -> Case:
    """A case as Mamba's layer calls it."""
    suffix = "_fp32" if dtype == "float32" else ""
    name = f"B{batch}_D{channels}_T{time}_N{N}{suffix}"
    return case(name, (batch, time, channels, N), dtype=dtype, given=MAMBA, tags=BENCH)


BENCH_CASES: list[Case] = [
    bench(8, 2048, 2048, 16),
    bench(8, 5120, 4096, 16),
    bench(1, 4096, 65536, 16),
    bench(1, 1536, 2048, 16),
    *(bench(8, 2048, 2048, N) for N in (8, 32, 64)),
    bench(8, 2048, 2048, 16, "float32"),
]

CASES: list[Case] = TEST_CASES + GPU_CASES + BENCH_CASES
