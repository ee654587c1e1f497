"""Named shapes of attention: each mask and option with gradients, odd sizes, and calls that see no key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from retrograd.opinfo.cases import Case, Tensor

SMALL = frozenset({"test", "interpreter"})
STRIDED = SMALL | {"strided"}
TEST = frozenset({"test"})
GPU = frozenset({"gpu"})
KERNELS = frozenset({"gpu", "interpreter"})  # what the portable path does not distinguish
BENCH = frozenset({"bench"})


def case(
    name: str,
    shape: tuple[int, int, int, int, int, int],
    *,
    value: int | None = None,
    dtype: str = "bfloat16",
    bias: tuple[int, int, int, int] | None = None,
    bias_dtype: str = "float32",
    slopes: tuple[int, ...] | None = None,
    sinks: bool = False,
    seed: int | None = None,
    packed: tuple[Collection[int], Collection[int]] | None = None,
    segments: Sequence[Sequence[int]] | None = None,
    tags: frozenset[str] = TEST,
    **options: Any,
) -> Case:
    """A case.

    `shape` is (B, Tq, Tk, H, G, D), `value` V, by default D; `packed` has the boundaries of queries and keys,
    `segments` the ids of each row.
    """
    B, Q, K, H, G, D = shape
    V = D if value is None else value
    inputs = {
        "q": Tensor((B, Q, H, D), dtype),
        "k": Tensor((B, K, G, D), dtype),
        "v": Tensor((B, K, G, V), dtype),
    }
    if bias:
        inputs["bias"] = Tensor(bias, bias_dtype)
    if slopes:
        inputs["alibi_slopes"] = Tensor(slopes, "float32", mean=0.1, std=0.02)
    if sinks:
        inputs["sinks"] = Tensor((H,), "float32")
    if seed is not None:
        inputs["dropout_seed"] = Tensor((), "int32", values=(seed,))
    if packed:
        for side, bounds in zip(("q", "k"), packed, strict=True):
            inputs[f"cu_seqlens_{side}"] = Tensor((len(bounds),), "int32", values=tuple(bounds))
    if segments:
        inputs["segment_ids"] = Tensor((B, Q), "int32", values=tuple(chain(*segments)))
    shared = frozenset({"alibi_slopes"} if slopes and len(slopes) == 1 else ())
    steps = {"T": Q} if Q == K else {"Tq": Q, "Tk": K}
    others = {name: size for name, size, usual in (("G", G, H), ("V", V, D)) if size != usual}
    return Case(name, inputs, options, tags, {"B": B, **steps, "H": H, "D": D, **others}, shared)


def ids(*runs: tuple[int, int]) -> tuple[int, ...]:
    """A row's ids from runs of (id, steps)."""
    return tuple(chain(*((label,) * steps for label, steps in runs)))


# Of 40 steps each: ids that come again, runs of one step, steps of no sequence inside and at both ends.
ROWS = (
    ids((0, 13), (7, 1), (0, 2), (5, 24)),
    ids((-1, 3), (2, 5), (-4, 2), (-1, 1), (2, 20), (1, 1), (3, 4), (-1, 4)),
    ids((9, 40)),
)
TEST_CASES: list[Case] = [
    case("plain", (2, 9, 9, 2, 2, 16), tags=STRIDED),
    case("fp32", (1, 70, 70, 3, 3, 24), dtype="float32", tags=SMALL),
    case("fp16", (2, 12, 20, 2, 1, 32), dtype="float16", tags=SMALL),
    case("causal", (2, 75, 75, 2, 2, 16), causal=True, tags=STRIDED),
    case("causal_more_keys", (1, 7, 70, 2, 2, 16), causal=True, tags=SMALL),
    case("causal_fewer_keys", (2, 20, 9, 2, 2, 16), causal=True, tags=SMALL),
    case("one_query", (2, 1, 70, 4, 2, 16), causal=True, tags=SMALL),
    case("one_key", (2, 5, 1, 2, 2, 16), return_lse=True, tags=SMALL),
    case("window", (1, 80, 80, 2, 1, 16), window=(5, 0), tags=SMALL),
    case("window_both", (2, 20, 30, 2, 2, 16), window=(3, 4), return_lse=True, tags=STRIDED),
    case("window_causal", (1, 10, 40, 2, 2, 16), window=(2, -1), causal=True, tags=SMALL),
    case("groups", (2, 17, 17, 6, 2, 16), causal=True, tags=STRIDED),
    case("wide_keys", (1, 9, 12, 2, 1, 48), value=16, scale=0.3, tags=SMALL),
    case("wide_values", (1, 9, 12, 2, 2, 16), value=40, dtype="float32", tags=SMALL),
    case("size_32", (2, 300, 330, 4, 2, 32), causal=True, sinks=True, return_lse=True, tags=GPU),
    case("size_32_packed", (1, 500, 520, 2, 2, 32), packed=((2, 3, 120, 436), (0, 7, 150, 508)), window=(40, 200),
         tags=GPU),
    case("size_32_segments", (2, 100, 100, 2, 1, 32), softcap=5.0, tags=GPU,
         segments=(ids((1, 30), (2, 70)), ids((0, 9), (3, 90), (-1, 1)))),
    case("size_40_window", (1, 200, 200, 2, 2, 40), window=(90, 0), dtype="float16", tags=GPU),
    case("size_64", (2, 300, 300, 4, 2, 64), causal=True, return_lse=True, tags=GPU),
    case("size_64_fewer_keys", (1, 300, 100, 2, 2, 64), causal=True, tags=GPU),
    case("size_64_window", (1, 400, 380, 2, 2, 64), window=(90, 60), dtype="float16", return_lse=True, tags=GPU),
    case("size_64_packed", (1, 700, 700, 4, 2, 64), packed=((0, 3, 3, 200, 690), (0, 3, 3, 200, 690)), causal=True,
         sinks=True, tags=GPU),
    case("size_64_segments", (2, 300, 300, 4, 2, 64), causal=True, sinks=True, return_lse=True, tags=GPU,
         segments=(ids((0, 130), (7, 1), (0, 60), (5, 109)), ids((-1, 3), (2, 140), (-4, 20), (2, 137)))),
    case("size_128", (1, 200, 330, 2, 2, 128), tags=GPU),
    case("size_128_more_keys", (2, 70, 300, 4, 1, 128), causal=True, sinks=True, return_lse=True, tags=GPU),
    case("size_128_window", (1, 500, 500, 2, 1, 128), window=(150, 0), softcap=5.0, tags=GPU),
    case("size_128_packed", (1, 500, 520, 2, 2, 128), packed=((2, 3, 120, 436), (0, 7, 150, 508)), window=(40, 200),
         return_lse=True, tags=GPU),
    case("size_128_segments", (2, 150, 150, 2, 2, 128), window=(40, 20), tags=GPU,
         segments=(ids((1, 70), (2, 80)), ids((0, 9), (3, 140), (-1, 1)))),
    case("size_128_one_query", (2, 1, 300, 4, 2, 128), causal=True, dtype="float16", tags=GPU),
    case("size_80", (2, 70, 70, 2, 1, 80), causal=True, tags=GPU),
    case("size_96_packed", (1, 150, 150, 2, 2, 96), packed=((0, 9, 80, 150), (0, 9, 80, 150)), causal=True, tags=GPU),
    case("size_160", (2, 70, 90, 2, 2, 160), return_lse=True, tags=GPU),
    case("size_192_128", (2, 130, 130, 2, 1, 192), value=128, causal=True, tags=GPU),
    case("size_160_104_packed", (1, 150, 160, 4, 2, 160), value=104, packed=((0, 9, 80, 150), (3, 9, 90, 160)),
         window=(40, 20), softcap=5.0, return_lse=True, tags=GPU),
    case("size_192_128_segments", (2, 150, 150, 2, 2, 192), value=128, tags=GPU,
         segments=(ids((1, 70), (2, 80)), ids((0, 9), (3, 140), (-1, 1)))),
    case("size_256", (1, 130, 130, 2, 2, 256), causal=True, window=(90, 0), softcap=5.0, tags=GPU),
    case("size_256_128_packed", (1, 150, 160, 4, 2, 256), value=128, packed=((0, 9, 80, 150), (3, 9, 90, 160)),
         window=(40, 20), return_lse=True, tags=GPU),
    case("size_512", (1, 90, 130, 2, 1, 512), causal=True, tags=GPU),
    case("size_576", (1, 90, 130, 4, 1, 576), value=512, causal=True, return_lse=True, tags=GPU),
    case("size_512_fp32", (1, 40, 70, 2, 2, 512), dtype="float32", tags=GPU),
    case("softcap", (2, 10, 10, 2, 2, 16), softcap=2.0, causal=True, tags=SMALL),
    case("softcap_lse", (2, 10, 10, 2, 2, 16), softcap=50.0, causal=True, return_lse=True, tags=SMALL),
    case("softcap_one_key", (2, 5, 1, 2, 2, 16), softcap=50.0, return_lse=True, tags=SMALL),
    case("softcap_fp32", (2, 9, 9, 2, 1, 16), dtype="float32", softcap=20.0, causal=True, return_lse=True, tags=SMALL),
    case("one_key_fp32", (2, 5, 1, 2, 2, 16), dtype="float32", return_lse=True, tags=SMALL),
    case("size_64_softcap", (2, 130, 130, 2, 1, 64), softcap=50.0, causal=True, return_lse=True, tags=GPU),
    case("size_128_one_key", (2, 70, 1, 2, 2, 128), softcap=30.0, return_lse=True, tags=GPU),
    case("size_64_bias", (2, 304, 304, 4, 2, 64), bias=(1, 4, 304, 304), bias_dtype="bfloat16", causal=True, sinks=True,
         return_lse=True, tags=GPU),
    case("size_64_bias_of_keys", (2, 70, 300, 2, 2, 64), bias=(2, 1, 1, 300), bias_dtype="bfloat16", tags=GPU),
    case("size_128_bias", (2, 200, 330, 4, 1, 128), bias=(2, 4, 200, 330), bias_dtype="bfloat16", tags=GPU),
    case("size_128_bias_softcap", (2, 150, 336, 2, 2, 128), dtype="float16", bias=(1, 1, 150, 336),
         bias_dtype="float16", window=(150, 0), softcap=5.0, return_lse=True, tags=GPU),
    case("size_128_bias_one_query", (2, 1, 336, 2, 2, 128), bias=(2, 2, 1, 336), bias_dtype="bfloat16", causal=True,
         tags=GPU),
    case("size_128_bias_packed", (1, 300, 320, 2, 1, 128), bias=(1, 2, 300, 320), bias_dtype="bfloat16", causal=True,
         packed=((2, 3, 120, 296), (0, 7, 150, 308)), return_lse=True, tags=GPU),
    case("size_64_bias_segments", (2, 200, 200, 2, 1, 64), bias=(2, 1, 200, 200), bias_dtype="bfloat16",
         segments=(ids((1, 80), (2, 120)), ids((0, 9), (3, 190), (-1, 1))), tags=GPU),
    case("lse", (2, 10, 13, 4, 2, 16), return_lse=True, tags=STRIDED),
    case("bias", (2, 10, 13, 4, 2, 16), bias=(2, 4, 10, 13), tags=STRIDED),
    case("bias_of_batch", (2, 10, 70, 2, 2, 16), bias=(1, 2, 10, 70), bias_dtype="bfloat16", causal=True, tags=SMALL),
    case("bias_of_heads", (2, 9, 9, 2, 1, 16), bias=(2, 1, 9, 9), tags=SMALL),
    case("bias_of_keys", (2, 9, 12, 2, 2, 16), bias=(1, 1, 1, 12), tags=SMALL),
    case("bias_of_queries", (2, 9, 12, 2, 2, 16), bias=(2, 2, 9, 1), dtype="float32", return_lse=True, tags=SMALL),
    case("alibi", (2, 12, 12, 4, 2, 16), slopes=(4,), causal=True, tags=SMALL),
    case("alibi_of_rows", (2, 12, 15, 2, 2, 16), slopes=(2, 2), tags=STRIDED),
    case("sinks", (2, 12, 9, 4, 2, 16), sinks=True, causal=True, return_lse=True, tags=STRIDED),
    case("dropout", (2, 10, 70, 4, 2, 16), seed=7, dropout_p=0.3, tags=STRIDED),
    case("packed", (1, 40, 40, 2, 1, 16), packed=((0, 3, 3, 30, 40), (0, 3, 3, 30, 40)), causal=True, tags=STRIDED),
    case("packed_gaps", (1, 40, 50, 4, 2, 16), packed=((2, 3, 20, 36), (0, 7, 10, 48)), sinks=True, slopes=(3, 4),
         window=(4, 2), return_lse=True, tags=STRIDED),
    case("packed_tiles", (1, 200, 220, 2, 2, 16), packed=((0, 70, 200), (5, 90, 220)), causal=True, dtype="float32"),
    case("packed_no_keys", (1, 12, 9, 2, 2, 16), packed=((0, 4, 12), (0, 0, 9)), tags=SMALL),
    case("packed_dropout", (1, 30, 30, 2, 2, 16), packed=((0, 12, 30), (0, 12, 30)), seed=3, dropout_p=0.2, tags=SMALL),
    case("everything", (2, 20, 26, 4, 2, 16), value=24, bias=(2, 1, 20, 26), slopes=(4,), sinks=True, seed=11,
         dropout_p=0.25, causal=True, window=(9, 3), softcap=5.0, scale=0.2, return_lse=True, dtype="float16",
         tags=STRIDED),
    case("fused", (2, 70, 90, 2, 2, 16), backward="fused", return_lse=True, tags=STRIDED),
    case("fused_causal", (1, 150, 150, 4, 2, 24), backward="fused", causal=True, dtype="float32", tags=GPU),
    case("fused_window", (1, 200, 170, 2, 2, 16), backward="fused", window=(40, 30), sinks=True, tags=KERNELS),
    case("fused_packed", (1, 150, 160, 4, 2, 16), packed=((2, 3, 90, 146), (0, 7, 90, 158)), slopes=(3, 4),
         window=(40, 20), backward="fused", tags=KERNELS),
    case("fused_everything", (2, 70, 80, 4, 2, 16), value=24, bias=(2, 1, 70, 80), slopes=(4,), sinks=True, seed=11,
         dropout_p=0.25, causal=True, window=(50, 3), softcap=5.0, scale=0.2, return_lse=True, dtype="float16",
         backward="fused", tags=KERNELS),
    case("segments", (3, 40, 40, 2, 1, 16), segments=ROWS, causal=True, tags=STRIDED),
    case("segments_everything", (2, 40, 40, 4, 2, 16), value=24, segments=ROWS[1::-1], slopes=(4,), sinks=True,
         window=(9, 3), softcap=5.0, return_lse=True, dtype="float16", tags=STRIDED),
    case("segments_dropout", (2, 40, 40, 4, 2, 16), segments=ROWS[:2], seed=5, dropout_p=0.3, tags=SMALL),
    case("segments_fp32", (2, 40, 40, 2, 2, 24), segments=ROWS[:2], dtype="float32", window=(11, 4), tags=SMALL),
    case("segments_tiles", (2, 200, 200, 2, 1, 16), segments=(ids((1, 70), (0, 130)), ids((3, 120), (-1, 9), (4, 71))),
         causal=True),
    case("segments_of_a_step", (2, 40, 40, 2, 2, 16), segments=(tuple(range(40)),) * 2, return_lse=True, tags=KERNELS),
    case("segments_of_nothing", (1, 9, 9, 2, 2, 16), segments=(ids((-1, 9)),), sinks=True, return_lse=True, tags=SMALL),
    case("segments_bias", (2, 40, 40, 2, 1, 16), segments=ROWS[:2], bias=(2, 1, 40, 40), causal=True, tags=SMALL),
    case("no_batch", (0, 5, 5, 2, 2, 16), tags=SMALL),
    case("no_queries", (2, 0, 5, 2, 2, 16), return_lse=True, tags=SMALL),
    case("no_keys", (2, 5, 0, 2, 2, 16), tags=SMALL),
]  # fmt: skip


def bench(batch: int, time: int, heads: int, D: int, groups: int | None = None, mark: str = "", **more: Any) -> Case:
    """A benchmark's case."""
    groups = heads if groups is None else groups
    name = f"{mark}B{batch}_T{time}_H{heads}{f'_G{groups}' if groups != heads else ''}_D{D}"
    return case(name, (batch, time, time, heads, groups, D), tags=BENCH, **more)


def packed_bounds(sequences: int, longest: int) -> tuple[int, ...]:
    """Bounds of sequences of 1 to `longest` steps, in an order in which long and short ones take turns."""
    lengths = [1 + (i * 197) % longest for i in range(sequences)]
    return tuple(sum(lengths[:i]) for i in range(sequences + 1))


TINY = packed_bounds(512, 512)
BENCH_CASES: list[Case] = [
    *(
        bench(batch, time, heads, D, mark=mark, **options)
        for batch, time, heads in ((4, 4096, 24), (16, 328, 24))
        for D in (32, 64, 128)
        for mark, options in (("", {}), ("causal_", {"causal": True}))
    ),
    *(
        bench(2, time, 16, D, mark=mark, **options)
        for D in (64, 128)
        for mark, options in (("", {}), ("causal_", {"causal": True}))
        for time in (1024, 2048, 4096, 8192, 16384)
    ),
    bench(1, 16384, 32, 128, 8, mark="causal_", causal=True),
    bench(4, 4096, 24, 96, mark="causal_", causal=True),
    bench(4, 4096, 24, 128, mark="window_", window=(1023, 0)),
    bench(4, 4096, 24, 128, mark="softcap_", causal=True, softcap=30.0),
    bench(4, 4096, 24, 128, mark="sinks_", causal=True, sinks=True),
    bench(4, 4096, 24, 128, mark="dropout_", causal=True, dropout_p=0.1, seed=1),
    *(bench(4, 4096, 24, D, mark="bias_", bias=(1, 24, 4096, 4096)) for D in (64, 128)),
    *(bench(4, 4096, 24, D, mark="bias16_", bias=(4, 24, 4096, 4096), bias_dtype="bfloat16") for D in (64, 128)),
    bench(1, TINY[-1], 16, 128, mark="packed_", causal=True, packed=(TINY, TINY)),
    bench(16, 1024, 24, 128, mark="causal_", causal=True),
    bench(4, 4096, 16, 256, mark="causal_", causal=True),
    bench(2, 4096, 16, 512, mark="causal_", causal=True),
    case("causal_B2_T4096_H16_D576_V512", (2, 4096, 4096, 16, 16, 576), value=512, causal=True, tags=BENCH),
    case("causal_B4_T4096_H16_D192_V128", (4, 4096, 4096, 16, 16, 192), value=128, causal=True, tags=BENCH),
    # The last ones, because XLA runs out of memory on them, and does not give back what it has.
    *(
        bench(1, 32768, 2, D, mark=mark, **options)
        for D in (32, 64, 128)
        for mark, options in (("", {}), ("causal_", {"causal": True}))
    ),
]

CASES: list[Case] = TEST_CASES + BENCH_CASES
