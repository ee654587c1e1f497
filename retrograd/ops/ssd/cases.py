"""Named shapes of ssd: shapes that users call, and shapes on which kernels have failed before."""

from __future__ import annotations

from typing import Any

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = frozenset({"test", "interpreter", "strided"})
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})
GPU_STRIDED = GPU | {"strided"}
BENCH = frozenset({"bench"})

MAMBA = frozenset({"D", "dt_bias", "dt_softplus"})  # arguments and options of Mamba-2's layer


def case(
    name: str,
    shape: tuple[int, int, int, int, int, int],
    *,
    dtype: str = "bfloat16",
    matrix_dtype: str | None = None,
    dt_dtype: str | None = None,
    given: frozenset[str] | set[str] = MAMBA,
    wide_D: bool = False,
    initial_state: bool = False,
    cu_seqlens: tuple[int, ...] | None = None,
    decay: float = 0.0,
    spread: float = 1.0,
    step_spread: float = 0.03,
    reading: float = 1.0,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case of shape (B, T, H, P, G, N).

    Args:
        name: its name.
        shape: batch, time, heads, channels of a head, groups, states.
        dtype: of x and z.
        matrix_dtype: of B and C; that of x by default.
        dt_dtype: of dt; that of x by default.
        given: those of z, D, dt_bias and dt_softplus that the call has.
        wide_D: whether D is (H, P).
        initial_state: whether the call has one.
        cu_seqlens: the boundaries of packed sequences.
        decay: the mean of log(-A): with 0, Mamba's, states decay in tens of steps; with 5, almost fully in one.
        spread: the standard deviation of log(-A).
        step_spread: that of dt, where there is no softplus.
        reading: the standard deviation of C: where it is small, gradients come by way of the final state.
        tags: see `Case`.
        options: the other options.
    """
    batch, time, heads, P, groups, N = shape
    softplus = "dt_softplus" in given
    inputs = {
        "x": Tensor((batch, time, heads, P), dtype),
        # Without softplus delta is dt itself, which must be small and mostly positive.
        "dt": Tensor((batch, time, heads), dt_dtype or dtype, *(() if softplus else (0.1, step_spread))),
        "A": Tensor((heads,), "float32", mean=decay, std=spread, law="negative"),
        "B": Tensor((batch, time, groups, N), matrix_dtype or dtype),
        "C": Tensor((batch, time, groups, N), matrix_dtype or dtype, std=reading),
    }
    if "D" in given:
        inputs["D"] = Tensor((heads, P) if wide_D else (heads,), "float32")
    if "z" in given:
        inputs["z"] = Tensor((batch, time, heads, P), dtype)
    if "dt_bias" in given:
        mean, std = (-3.0, 0.5) if softplus else (0.1, 0.03)
        inputs["dt_bias"] = Tensor((heads,), "float32", mean=mean, std=std)
    if initial_state:
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        inputs["initial_state"] = Tensor((sequences, heads, P, N), "float32")
    if cu_seqlens is not None:
        inputs["cu_seqlens"] = Tensor((len(cu_seqlens),), "int32", values=cu_seqlens)
    options |= {"dt_softplus": True} if softplus else {}
    letters = dict(zip("BTHPGN", shape, strict=True))
    return Case(name, inputs, options, tags, letters)


ALL: dict[str, Any] = {"given": MAMBA | {"z"}, "initial_state": True, "return_final_state": True}
# Every step decays by about exp(-40), and all that dA has comes by way of the final state. The decays differ little:
# otherwise one head would have almost all of dA, and a draw would judge the error of a single number.
DECAYED: dict[str, Any] = {
    "given": frozenset(),
    "decay": 6.0,
    "spread": 0.005,
    "step_spread": 0.001,
    "reading": 1e-6,
    "initial_state": True,
    "return_final_state": True,
}

TEST_CASES: list[Case] = [
    case("plain", (2, 9, 64, 4, 1, 4), given=frozenset()),
    case("mamba", (2, 70, 64, 4, 1, 16), tags=STRIDED),
    case("mamba_fp32", (1, 140, 64, 4, 1, 4), dtype="float32"),
    case("mamba_fp16", (1, 20, 64, 4, 1, 4), dtype="float16"),
    case("matrices_fp32", (1, 20, 64, 4, 1, 4), matrix_dtype="float32"),
    case("steps_fp32", (1, 20, 64, 4, 1, 4), dt_dtype="float32"),
    case("gate", (2, 20, 64, 4, 1, 4), given=MAMBA | {"z"}, tags=SMALL),
    case("skip_alone", (1, 5, 64, 4, 1, 4), given={"D"}),
    case("wide_skip", (2, 20, 64, 4, 1, 4), wide_D=True, tags=SMALL),
    case("bias_alone", (1, 5, 64, 4, 1, 4), given={"dt_bias"}),
    case("softplus_alone", (1, 5, 64, 4, 1, 4), given={"dt_softplus"}),
    case("limit", (2, 20, 64, 4, 1, 4), dt_limit=(0.04, 0.08), tags=SMALL),
    case("limit_alone", (2, 20, 64, 4, 1, 4), given=frozenset(), dt_limit=(0.08, 0.12)),
    case("strong_decay", (1, 150, 64, 4, 1, 4), decay=5.0, tags=SMALL),
    case("decayed_state", (1, 2, 64, 4, 1, 4), dtype="float32", tags=SMALL, **DECAYED),
    case("decayed_states", (2, 9, 64, 4, 1, 4), tags=SMALL, **DECAYED),
    case("weak_decay", (1, 150, 64, 4, 1, 4), decay=-5.0),
    case("groups", (2, 20, 48, 16, 3, 4), tags=STRIDED),
    case("own_groups", (1, 20, 64, 4, 64, 4), dtype="float32"),
    case("one_head", (2, 12, 1, 16, 1, 16)),
    case("odd", (2, 37, 23, 7, 1, 5), tags=SMALL, **ALL),
    case("one_channel", (2, 20, 64, 1, 1, 1), dtype="float32"),
    case("wide_head", (1, 20, 64, 80, 1, 4), tags=SMALL),
    case("many_states", (1, 40, 64, 4, 1, 144), tags=SMALL, **ALL),
    case("one_step", (3, 1, 64, 4, 1, 4), tags=SMALL, **ALL),
    case("no_steps", (2, 0, 64, 4, 1, 4), tags=SMALL, **ALL),
    case("no_rows", (0, 5, 64, 4, 1, 4), tags=SMALL, **ALL),
    case("no_heads", (2, 5, 0, 4, 1, 4), **ALL),
    case("states", (1, 140, 64, 4, 1, 4), dtype="float32", tags=STRIDED, **ALL),
    case("initial_state", (2, 18, 64, 4, 1, 4), initial_state=True),
    case("final_state", (2, 18, 64, 4, 1, 4), return_final_state=True),
    case("packed", (1, 180, 64, 4, 1, 4), cu_seqlens=(0, 7, 7, 140, 141, 180), tags=STRIDED, **ALL),
    case("packed_fp32", (1, 50, 64, 5, 1, 7), dtype="float32", cu_seqlens=(0, 0, 33, 50, 50), tags=SMALL, **ALL),
    case("packed_plain", (1, 34, 64, 4, 1, 4), cu_seqlens=(0, 16, 34)),
    case("packed_groups", (1, 20, 64, 4, 2, 4), cu_seqlens=(0, 3, 20), **ALL),
    case("packed_outside", (1, 80, 64, 4, 1, 4), cu_seqlens=(3, 3, 20, 71, 71), tags=SMALL, **ALL),
    case("packed_no_steps", (1, 0, 64, 4, 1, 4), cu_seqlens=(0, 0, 0), **ALL),
    case("long", (1, 200, 64, 32, 1, 32)),
]

GPU_CASES: list[Case] = [
    case("gpu_mamba", (3, 500, 6, 64, 1, 128), tags=GPU),
    case("gpu_fp32", (2, 400, 4, 64, 1, 128), dtype="float32", tags=GPU, **ALL),
    case("gpu_fp16", (2, 513, 4, 64, 1, 128), dtype="float16", tags=GPU_STRIDED, **ALL),
    case("gpu_gate", (2, 300, 4, 64, 2, 64), given=MAMBA | {"z"}, tags=GPU, return_final_state=True),
    case("gpu_plain", (2, 300, 4, 64, 1, 128), given=frozenset(), tags=GPU),
    case("gpu_wide", (2, 300, 3, 128, 1, 128), wide_D=True, tags=GPU),
    case("gpu_widest", (1, 300, 2, 256, 1, 256), tags=GPU, **ALL),
    case("gpu_widest_fp32", (1, 150, 2, 256, 1, 256), dtype="float32", tags=GPU),
    case("gpu_narrow", (2, 300, 5, 32, 1, 32), tags=GPU),
    case("gpu_256", (2, 520, 4, 64, 2, 256), tags=GPU, initial_state=True, return_final_state=True),
    case("gpu_packed_256", (1, 700, 3, 64, 1, 256), cu_seqlens=(5, 128, 128, 384, 690), tags=GPU, initial_state=True),
    case("gpu_heads_256", (1, 400, 65, 64, 1, 256), cu_seqlens=(0, 130, 400), tags=GPU),
    case("gpu_wide_256", (1, 300, 2, 128, 1, 256), tags=GPU, return_final_state=True),
    case("gpu_odd", (2, 300, 3, 72, 1, 100), tags=GPU),
    case("gpu_heads", (1, 300, 83, 64, 1, 64), tags=GPU),
    case("gpu_strong", (2, 500, 4, 64, 1, 128), decay=5.0, tags=GPU),
    case("gpu_decayed", (2, 200, 4, 64, 1, 128), tags=GPU, **DECAYED),
    case("gpu_decayed_256", (2, 200, 4, 64, 1, 256), dtype="float16", tags=GPU, **DECAYED),
    case("gpu_decayed_fp32", (1, 140, 4, 64, 1, 64), dtype="float32", tags=GPU, **DECAYED),
    case("gpu_weak", (2, 500, 4, 64, 1, 128), decay=-5.0, tags=GPU),
    case("gpu_long", (1, 5000, 2, 64, 1, 128), tags=GPU, initial_state=True, return_final_state=True),
    case("gpu_states", (2, 1000, 4, 64, 1, 128), tags=GPU_STRIDED, initial_state=True, return_final_state=True),
    case("gpu_packed", (1, 900, 4, 64, 1, 128), cu_seqlens=(0, 300, 300, 301, 640, 900), tags=GPU_STRIDED, **ALL),
    case(
        "gpu_packed_states",
        (1, 900, 3, 64, 1, 128),
        dtype="float16",
        cu_seqlens=(0, 300, 300, 301, 640, 900),
        given=MAMBA,
        tags=GPU_STRIDED,
        initial_state=True,
        return_final_state=True,
    ),
    case("gpu_packed_groups", (1, 700, 8, 64, 4, 64), cu_seqlens=(5, 128, 384, 690), tags=GPU, return_final_state=True),
]


def bench(batch: int, time: int, heads: int, P: int, N: int, groups: int = 1) -> Case:
    """A case with the arguments of Mamba-2's layer."""
    shape = (batch, time, heads, P, groups, N)
    return case(f"B{batch}_T{time}_H{heads}_P{P}_N{N}_G{groups}", shape, tags=BENCH)


BENCH_CASES: list[Case] = [
    bench(8, 4096, 80, 64, 128),
    bench(1, 8192, 80, 64, 128),
    bench(2, 2048, 24, 64, 128),
    bench(1, 65536, 24, 64, 128),
    bench(8, 4096, 24, 64, 128),
    bench(4, 4096, 64, 64, 64, groups=8),
    bench(8, 4096, 128, 64, 128, groups=8),
    bench(8, 4096, 128, 64, 256),
    bench(8, 4096, 32, 128, 128),
]

CASES: list[Case] = TEST_CASES + GPU_CASES + BENCH_CASES
