"""Named shapes of gated_delta_rule: shapes that users call, and shapes on which an implementation may fail."""

from __future__ import annotations

from typing import Any

from retrograd.opinfo.cases import Case, Tensor

TEST = frozenset({"test"})
STRIDED = frozenset({"test", "strided"})
INTERPRETER = frozenset({"test", "interpreter"})
GPU = frozenset({"gpu"})
BENCH = frozenset({"bench"})


def case(
    name: str,
    shape: tuple[int, int, int, int, int, int],
    *,
    dtype: str = "bfloat16",
    wide_dtype: str | None = None,
    of_channels: bool = False,
    initial_state: bool = False,
    cu_seqlens: tuple[int, ...] | None = None,
    decay: float = -2.0,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case of shape (B, T, G, H, K, V).

    Args:
        name: its name.
        shape: batch, time, key heads, heads, channels of keys and of values.
        dtype: of q, k and v.
        wide_dtype: of g and beta; that of q by default.
        of_channels: whether each channel of K has a decay of its own.
        initial_state: whether the call has one.
        cu_seqlens: the boundaries of packed sequences.
        decay: the mean of log(-g): with -2 states decay in tens of steps, with 3 almost fully in one.
        tags: see `Case`.
        options: the options. Without `normalize_qk` keys are drawn with a norm of about 1.
    """
    batch, time, groups, heads, K, V = shape
    wide = wide_dtype or dtype
    std = 1.0 if options.get("normalize_qk") else K**-0.5
    inputs = {
        "q": Tensor((batch, time, groups, K), dtype),
        "k": Tensor((batch, time, groups, K), dtype, std=std),
        "v": Tensor((batch, time, heads, V), dtype),
        "g": Tensor((batch, time, heads, *((K,) if of_channels else ())), wide, mean=decay, law="negative"),
        "beta": Tensor((batch, time, heads), wide, law="decay"),
    }
    if initial_state:
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        inputs["initial_state"] = Tensor((sequences, heads, V, K), "float32")
    if cu_seqlens is not None:
        inputs["cu_seqlens"] = Tensor((len(cu_seqlens),), "int32", values=cu_seqlens)
    return Case(name, inputs, options, tags, dict(zip("BTGHKV", shape, strict=True)))


ALL: dict[str, Any] = {"initial_state": True, "return_final_state": True, "normalize_qk": True}

TEST_CASES: list[Case] = [
    case("plain", (2, 9, 2, 4, 8, 4)),
    case("blocks", (2, 140, 2, 4, 8, 4), normalize_qk=True, tags=STRIDED | INTERPRETER),
    case("fp32", (1, 140, 2, 4, 8, 4), dtype="float32"),
    case("fp16", (1, 20, 2, 4, 8, 4), dtype="float16", tags=INTERPRETER, **ALL),
    case("decays_fp32", (1, 20, 2, 4, 8, 4), wide_dtype="float32"),
    case("own_heads", (2, 20, 3, 3, 8, 8), tags=INTERPRETER, **ALL),
    case("odd", (2, 37, 1, 3, 5, 7), tags=INTERPRETER, **ALL),
    case("one_channel", (2, 20, 2, 2, 1, 1), dtype="float32", tags=INTERPRETER, **ALL),
    case("strong_decay", (1, 150, 2, 2, 8, 4), decay=3.0, **ALL),
    case("weak_decay", (1, 150, 2, 2, 8, 4), decay=-8.0, **ALL),
    case("scale", (1, 20, 2, 2, 8, 4), scale=0.5, tags=INTERPRETER),
    case("one_step", (3, 1, 2, 4, 8, 4), tags=INTERPRETER, **ALL),
    case("no_steps", (2, 0, 2, 4, 8, 4), tags=INTERPRETER, **ALL),
    case("no_rows", (0, 5, 2, 4, 8, 4), **ALL),
    case("packed", (1, 180, 2, 4, 8, 4), cu_seqlens=(0, 7, 7, 140, 141, 180), tags=STRIDED | INTERPRETER, **ALL),
    case("packed_gaps", (1, 50, 2, 2, 8, 4), dtype="float32", cu_seqlens=(3, 3, 33, 48, 48), tags=INTERPRETER, **ALL),
    case("channels", (2, 140, 2, 4, 8, 4), of_channels=True, normalize_qk=True, tags=STRIDED),
    case("channels_fp32", (1, 70, 2, 4, 8, 4), of_channels=True, dtype="float32", **ALL),
    case("channels_strong_decay", (1, 40, 2, 2, 8, 4), of_channels=True, decay=3.0, **ALL),
    case("channels_packed", (1, 90, 2, 4, 8, 4), of_channels=True, cu_seqlens=(2, 7, 7, 60, 88), **ALL),
]

GPU_CASES: list[Case] = [
    case("gpu_128", (2, 300, 2, 4, 128, 128), tags=GPU | {"strided"}, **ALL),
    case("gpu_fp16", (2, 200, 1, 2, 128, 128), dtype="float16", wide_dtype="float32", tags=GPU),
    case("gpu_fp32", (2, 150, 2, 4, 128, 128), dtype="float32", tags=GPU, **ALL),
    case("gpu_64", (2, 300, 3, 3, 64, 128), tags=GPU, normalize_qk=True),
    case("gpu_32", (2, 300, 2, 4, 32, 32), tags=GPU, **ALL),
    case("gpu_256", (1, 300, 1, 2, 256, 256), tags=GPU, **ALL),
    case("gpu_256_fp32", (1, 100, 1, 2, 256, 64), dtype="float32", tags=GPU, **ALL),
    case("gpu_odd", (2, 200, 1, 3, 72, 100), tags=GPU, **ALL),
    case("gpu_strong", (1, 500, 2, 4, 128, 128), decay=3.0, tags=GPU, **ALL),
    case("gpu_weak", (1, 500, 2, 4, 128, 128), decay=-8.0, tags=GPU, **ALL),
    case("gpu_long", (1, 5000, 1, 2, 128, 128), tags=GPU, initial_state=True, return_final_state=True),
    case(
        "gpu_packed", (1, 900, 2, 4, 128, 128), cu_seqlens=(0, 300, 300, 301, 640, 900), tags=GPU | {"strided"}, **ALL
    ),
    case("gpu_packed_gaps", (1, 700, 2, 4, 64, 64), cu_seqlens=(5, 128, 384, 690), tags=GPU, **ALL),
    case(
        "gpu_channels", (2, 300, 4, 4, 128, 128), of_channels=True, wide_dtype="float32", tags=GPU | {"strided"}, **ALL
    ),
    case("gpu_channels_fp16", (2, 200, 1, 2, 128, 64), of_channels=True, dtype="float16", tags=GPU),
    case("gpu_channels_fp32", (2, 150, 2, 4, 128, 128), of_channels=True, dtype="float32", tags=GPU, **ALL),
    case("gpu_channels_32", (2, 300, 2, 4, 32, 32), of_channels=True, tags=GPU, **ALL),
    case("gpu_channels_256", (1, 300, 1, 2, 256, 256), of_channels=True, tags=GPU, **ALL),
    case("gpu_channels_256_fp32", (1, 100, 1, 2, 256, 64), of_channels=True, dtype="float32", tags=GPU, **ALL),
    case("gpu_channels_odd", (2, 200, 1, 3, 72, 100), of_channels=True, tags=GPU, **ALL),
    case("gpu_channels_strong", (1, 500, 2, 2, 128, 128), of_channels=True, decay=3.0, tags=GPU, **ALL),
    case("gpu_channels_weak", (1, 500, 2, 2, 128, 128), of_channels=True, decay=-8.0, tags=GPU, **ALL),
    case(
        "gpu_channels_packed_long",
        (1, 3400, 1, 2, 128, 128),
        of_channels=True,
        cu_seqlens=(3, 1100, 1100, 1101, 3395),
        tags=GPU,
        **ALL,
    ),
    case("gpu_channels_long", (2, 2500, 1, 2, 128, 128), of_channels=True, wide_dtype="float32", tags=GPU, **ALL),
    case(
        "gpu_channels_packed",
        (1, 900, 2, 4, 128, 128),
        of_channels=True,
        cu_seqlens=(5, 300, 300, 301, 640, 890),
        tags=GPU | {"strided"},
        **ALL,
    ),
]


def bench(batch: int, time: int, sequences: int = 1) -> Case:
    """A case with the heads of Qwen3-Next."""
    bounds = tuple(time // sequences * i for i in range(sequences + 1))
    return case(
        f"B{batch}_T{time}_G16_H32_K128_V128{f'_S{sequences}' if sequences > 1 else ''}",
        (batch, time, 16, 32, 128, 128),
        wide_dtype="float32",
        cu_seqlens=bounds if sequences > 1 else None,
        tags=BENCH,
    )


def bench_channels(batch: int, time: int) -> Case:
    """A case with the heads of Kimi Linear."""
    name = f"B{batch}_T{time}_H32_K128_V128_channels"
    shape = (batch, time, 32, 32, 128, 128)
    return case(name, shape, of_channels=True, wide_dtype="float32", tags=BENCH)


BENCH_CASES: list[Case] = [
    *(bench(1, 32768), bench(1, 8192), bench(8, 4096), bench(1, 32768, sequences=4)),
    *(bench_channels(1, 32768), bench_channels(1, 8192), bench_channels(8, 4096)),
]
CASES: list[Case] = TEST_CASES + GPU_CASES + BENCH_CASES
