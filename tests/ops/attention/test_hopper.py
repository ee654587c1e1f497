"""attention's kernels for Hopper: the calls they take, what the assembler makes of them, and their tiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytest
import triton
from checks.resources import loops_of_products, resources, serialized, spills_in_loops
from hypothesis import assume, given
from hypothesis import strategies as st

from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.op import Backward, Forward
from retrograd.core.program import Layout, dense
from retrograd.core.spec import Pass
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.attention.cases import case
from retrograd.ops.attention.hopper import schedule
from retrograd.ops.attention.hopper.plan import FORWARD
from retrograd.ops.attention.hopper.tuples import Window
from retrograd.ops.attention.op import OP, Spec

HOPPER = SUPPORTED["sm_90"]
HOPPER_OP = OP.only("hopper")
BOUNDS = (0, 100, 260)


def spec(D: int = 64, **how: Any) -> Spec:
    checked: Spec = spec_of(OP, case("call", (1, 260, 260, 4, 2, D), **how))
    return checked


def taken(spec: Spec, arch: Arch = HOPPER, which: Pass = "fwd") -> bool:
    (hopper,) = HOPPER_OP.implementations
    return hopper.has(spec, arch, which)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"D": 128, "dtype": "float16"},
        {"D": 32},
        {"D": 48, "value": 64},
        {"D": 80},
        {"D": 96},
        {"D": 160},
        {"D": 192, "value": 128},
        {"causal": True, "window": (30, 0), "softcap": 3.0, "sinks": True, "scale": 0.2, "return_lse": True},
        {"packed": (BOUNDS, BOUNDS)},
        {"segments": ((0,) * 260,)},
        {"backward": "fused"},
        {"bias": (1, 4, 260, 260), "bias_dtype": "bfloat16"},
        {"D": 128, "bias": (1, 1, 1, 260), "bias_dtype": "bfloat16", "softcap": 3.0},
        {"bias": (1, 4, 260, 260), "bias_dtype": "bfloat16", "packed": (BOUNDS, BOUNDS)},
        {"bias": (1, 4, 260, 260), "bias_dtype": "bfloat16", "segments": ((0,) * 260,)},
    ],
    ids=str,
)
def test_it_takes(how: dict[str, Any]) -> None:
    assert taken(spec(**how))


@pytest.mark.parametrize(
    "how",
    [
        {"D": 24},
        {"D": 68},
        {"D": 32, "value": 64},
        {"D": 300},
        {"value": 128},
        {"dtype": "float32"},
        {"bias": (1, 4, 260, 260)},
        {"bias": (1, 4, 260, 1), "bias_dtype": "bfloat16"},
        {"D": 192, "value": 128, "bias": (1, 4, 260, 260), "bias_dtype": "bfloat16"},
        {"slopes": (4,)},
        {"seed": 1, "dropout_p": 0.1},
        {"scale": -0.3},  # the largest score is that of the largest product
        {"scale": 0.0},
    ],
    ids=str,
)
def test_it_leaves_to_the_portable_kernels(how: dict[str, Any]) -> None:
    assert not taken(spec(**how))


def test_it_needs_hopper_and_tensor_descriptors() -> None:
    assert [name for name, arch in SUPPORTED.items() if taken(spec(), arch)] == ["sm_90"]
    assert not taken(spec(), replace(HOPPER, copies_tensors=False))


def test_the_other_backward_algorithm_is_left_to_the_portable_kernels() -> None:
    for D, expected in ((64, (True, True, False)), (128, (True, True, False)), (256, (True, False, True))):
        found = [taken(spec(D, backward=name), which="bwd") for name in ("auto", "fused", "split")]
        assert tuple(found) == expected


def test_a_softcap_whose_derivative_is_lost_in_lse_is_left_to_the_portable_kernels() -> None:
    assert [taken(spec(softcap=cap), which="bwd") for cap in (0.01, 0.1, 50.0)] == [False, True, True]


def test_wide_heads_with_ids_are_split_whatever_the_algorithm() -> None:
    found = [
        taken(spec(256, backward=name, segments=((0,) * 260,)), which="bwd") for name in ("auto", "fused", "split")
    ]
    assert all(found)


def test_the_backward_pass_of_a_call_with_a_bias_is_left_to_the_portable_kernels() -> None:
    biased = spec(bias=(1, 4, 260, 260), bias_dtype="bfloat16")
    assert [taken(biased, which=which) for which in ("fwd", "bwd")] == [True, False]


def test_both_passes_take_the_same_sizes_and_options() -> None:
    for how in ({}, {"D": 128}, {"D": 192, "value": 128}, {"D": 256}, {"softcap": 3.0}, {"segments": ((0,) * 260,)}):
        assert [taken(spec(**how), which=which) for which in ("fwd", "bwd")] == [True, True]


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (30, 5)},
    "softcap": {"causal": True, "softcap": 3.0, "sinks": True},
    "packed": {"causal": True, "packed": (BOUNDS, BOUNDS)},
    "segments": {"causal": True, "segments": ((0,) * 260,)},
}
CASES = {
    f"{name}_{D}_{V}": case(name, (1, 260, 260, 4, 2, D), value=V, **how)
    for D, V in FORWARD
    for name, how in KINDS.items()
}
BIASES = {
    f"{name}_{D}_bias": case(name, (1, 260, 260, 4, 2, D), bias=shape, bias_dtype="bfloat16", **KINDS[name])
    for D in (32, 64, 128)
    for name, shape in (
        ("full", (1, 4, 260, 260)),
        ("causal", (1, 1, 260, 260)),
        ("softcap", (1, 4, 1, 260)),
        ("window", (1, 4, 260, 260)),
    )
}
WALKS = ("backward_fused", "backward_pairs", "backward_dq", "backward_both", "backward_apart")
QUICK = ("causal_128_128",)  # the others are slow
EACH = [pytest.param(c, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, c in CASES.items()]
WITH_BIAS = [
    pytest.param(c, id=name, marks=() if name == "full_128_bias" else pytest.mark.slow) for name, c in BIASES.items()
]


# The plans are tuned for one release of Triton; with others, kernels only have to compile.
TUNED = triton.__version__.startswith("3.6.")
OF_THIS_TRITON = pytest.mark.skipif(not TUNED, reason="another release of Triton orders instructions otherwise")


def check(compiled: Any, allowed_spills: int) -> None:
    if TUNED:
        assert not serialized(compiled)
        assert resources(compiled).spills <= allowed_spills
        assert not spills_in_loops(compiled)


@pytest.mark.compile
@pytest.mark.parametrize("case", EACH + WITH_BIAS)
def test_products_run_beside_the_softmax(case: Case) -> None:
    program = Forward(HOPPER_OP, spec_of(OP, case)).program({}, HOPPER)
    assert program is not None
    *_, forward = program.launches
    check(build(forward, program.arrays, HOPPER), forward.allowed_spills)


@pytest.mark.compile
@pytest.mark.parametrize("case", EACH + WITH_BIAS)
def test_maxima_are_computed_while_values_are_added(case: Case) -> None:
    spec = spec_of(OP, case)
    program = Forward(HOPPER_OP, spec).program({}, HOPPER)
    assert program is not None
    *_, forward = program.launches
    options = forward.constants["OPTIONS"]
    loops = loops_of_products(build(forward, program.arrays, HOPPER))
    assert len(loops) == options.groups
    for loop in loops:
        last_product = max(i for i, line in enumerate(loop) if "HGMMA" in line)
        wait = next(i for i, line in enumerate(loop) if i > last_product and "WARPGROUP.DEPBAR.LE gsb0, 0x0" in line)
        before, after = " ".join(loop[last_product:wait]), " ".join(loop[wait:])
        if options.beside:
            assert "FMNMX" in before
            assert "FMNMX" not in after
        # Where warps release blocks, no group waits for its warps between its products and the end of the step.
        assert options.by_warps == ("BAR.ARV" in after) == ("BAR.SYNC" not in before + after)


@OF_THIS_TRITON
@pytest.mark.compile
@pytest.mark.parametrize("D", [64, 128])
def test_a_bias_is_read_while_products_run_four_matrices_of_64_pairs_at_a_time(D: int) -> None:
    program = Forward(HOPPER_OP, spec_of(OP, BIASES[f"full_{D}_bias"])).program({}, HOPPER)
    assert program is not None
    *_, forward = program.launches
    for loop in loops_of_products(build(forward, program.arrays, HOPPER)):
        reads = [i for i, line in enumerate(loop) if "LDSM" in line]
        assert len(reads) == 64 * 128 // 4 // (4 * 64)  # of each warp
        assert reads[-1] < next(i for i, line in enumerate(loop) if "WARPGROUP.DEPBAR" in line)


@pytest.mark.compile
@pytest.mark.parametrize("case", EACH)
def test_products_of_the_backward_pass_run_beside_each_other(case: Case) -> None:
    spec: Spec = spec_of(OP, case)
    task = Backward(HOPPER_OP, spec, frozenset("qkv"))
    program = task.program({}, HOPPER)
    assert program is not None
    walks = [launch for launch in program.launches if launch.kernel.__name__ in WALKS]
    assert walks
    for walk in walks:
        check(build(walk, program.arrays, HOPPER), walk.allowed_spills)


def walks_of(case: Case, kernels: Sequence[str]) -> list[Any]:
    """The binaries of those of a backward pass's kernels."""
    program = Backward(HOPPER_OP, spec_of(OP, case), frozenset("qkv")).program({}, HOPPER)
    assert program is not None
    walks = [launch for launch in program.launches if launch.kernel.__name__ in kernels]
    assert len(walks) == len(kernels)
    return [build(walk, program.arrays, HOPPER) for walk in walks]


@OF_THIS_TRITON
@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "walks"),
    [
        ("causal_192_128", ["backward_dq", "backward_both"]),
        pytest.param("causal_256_256", ["backward_dq"], marks=pytest.mark.slow),
        ("causal_64_64", ["backward_pairs"]),
    ],
)
def test_products_of_one_half_run_beside_the_exponentials_of_the_other(name: str, walks: list[str]) -> None:
    for walk in walks_of(CASES[name], walks):
        loops = loops_of_products(walk)
        assert len(loops) == 2
        for loop in loops:
            code = " ".join(loop)
            exponentials = [place.start() for place in re.finditer("MUFU.EX2", code)]
            between = code[exponentials[len(exponentials) // 2 - 1] : exponentials[-1]]
            assert "HGMMA" in between
            assert "WARPGROUP.DEPBAR.LE gsb0, 0x0" not in between[between.rindex("HGMMA") :]


@OF_THIS_TRITON
@pytest.mark.compile
def test_exponentials_of_64_columns_do_not_wait_for_products_of_their_step() -> None:
    (walk,) = walks_of(CASES["full_64_64"], ["backward_pairs"])
    loops = loops_of_products(walk)
    assert len(loops) == 2
    for loop in loops:
        exponentials = [i for i, line in enumerate(loop) if "MUFU.EX2" in line]
        first_half = exponentials[: len(exponentials) // 2]
        products = [i for i, line in enumerate(loop) if "HGMMA" in line]
        waits = [i for i, line in enumerate(loop) if "WARPGROUP.DEPBAR" in line]
        assert min(products) < min(first_half)
        assert min(waits) > max(first_half)


@OF_THIS_TRITON
@pytest.mark.compile
@pytest.mark.parametrize("name", ["full_256_256", pytest.param("full_256_128", marks=pytest.mark.slow)])
def test_groups_with_a_gradient_each_compute_no_product_twice(name: str) -> None:
    case = CASES[name]
    spec: Spec = spec_of(OP, case)
    (walk,) = walks_of(case, ["backward_apart"])
    products = [re.findall(r"HGMMA.64x(\d+)x16", " ".join(loop)) for loop in loops_of_products(walk)]
    D, V = spec.head_size, spec.value_size
    assert sorted(products) == sorted([[str(V)] * 4 + ["64"] * (D // 16), [str(D)] * 4 + ["64"] * (V // 16)])


@OF_THIS_TRITON
@pytest.mark.compile
@pytest.mark.parametrize(("D", "V"), [(80, 80), pytest.param(96, 120, marks=pytest.mark.slow)])
def test_products_over_columns_leave_out_those_after_a_head(D: int, V: int) -> None:
    spec = spec_of(OP, case("causal", (1, 260, 260, 4, 2, D), value=V, causal=True))
    forward = Forward(HOPPER_OP, spec).program({}, HOPPER)
    backward = Backward(HOPPER_OP, spec, frozenset("qkv")).program({}, HOPPER)
    assert forward is not None
    assert backward is not None
    (walk,) = (launch for launch in backward.launches if launch.kernel.__name__ in WALKS)
    of_values = 80 if V == 80 else 128
    for launch, program, summed in (
        (forward.launches[-1], forward, D + 128),  # columns of scores, keys of a block
        (walk, backward, D + of_values + 128 + 2 * 64),  # of scores, dp; keys of a tile; twice the queries of one
    ):
        loops = loops_of_products(build(launch, program.arrays, HOPPER))
        assert [sum("HGMMA" in line for line in loop) for loop in loops] == [summed // 16] * 2


@pytest.mark.parametrize(
    ("D", "value", "wanted", "walks"),
    [
        (192, 128, "qkv", ["backward_dq", "backward_both"]),
        (160, 104, "k", ["backward_both"]),
        (192, 128, "v", ["backward_both"]),
        (192, 128, "q", ["backward_dq"]),
        (192, 192, "qkv", ["backward_dq", "backward_apart"]),
        (256, 128, "qkv", ["backward_dq", "backward_apart"]),
        (256, 256, "v", ["backward_apart"]),
    ],
)
def test_a_group_has_dk_and_dv_where_their_sums_fit_in_registers(
    D: int, value: int, wanted: str, walks: list[str]
) -> None:
    program = Backward(HOPPER_OP, spec(D, value=value), frozenset(wanted)).program({}, HOPPER)
    assert program is not None
    assert [launch.kernel.__name__ for launch in program.launches if launch.kernel.__name__ in WALKS] == walks


def test_an_array_that_no_descriptor_can_take_is_copied() -> None:
    def copied(strides: tuple[int, ...], *, aligned: bool = True) -> bool:
        program = Forward(HOPPER_OP, spec()).program({"k": Layout(strides, aligned)}, HOPPER)
        assert program is not None
        return next(array.copied for array in program.inputs if array.name == "k")

    shape = (1, 260, 2, 64)
    assert not copied(dense(shape))
    assert not copied((260 * 6 * 64, 6 * 64, 64, 1))  # a part of a packed qkv
    assert not copied((2 * 260 * 64, 64, 260 * 64, 1))  # heads first
    assert copied((260 * 130, 130, 65, 1))
    assert copied((260 * 256, 256, 128, 2))
    assert copied(dense(shape), aligned=False)


def test_a_bias_that_no_descriptor_can_take_is_copied() -> None:
    def launches(keys: int, strides: tuple[int, ...] | None = None, *, aligned: bool = True, D: int = 64) -> list[Any]:
        shape = (2, 4, 260, keys)
        biased = spec_of(OP, case("call", (2, 260, keys, 4, 2, D), bias=shape, bias_dtype="bfloat16"))
        layouts = {"bias": Layout(dense(shape) if strides is None else strides, aligned)}
        program = Forward(HOPPER_OP, biased).program(layouts, HOPPER)
        assert program is not None
        return list(program.launches)

    def copied(*how: Any, **more: Any) -> bool:
        return [launch.kernel.__name__ for launch in launches(*how, **more)] == ["copy_bias", "forward"]

    whole = 260 * 264
    assert not copied(264)
    assert not copied(264, D=128)
    assert not copied(264, (0, whole, 264, 1))
    assert not copied(264, (0, 0, 264, 1))
    assert not copied(260, (4 * whole, whole, 264, 1))
    assert copied(260)
    assert copied(264, (4 * whole, whole, 1, 260))
    assert not copied(264, (264, 0, 0, 1))
    assert copied(264, aligned=False)
    expanded = launches(264, (0, whole, 264, 1))[-1]
    assert expanded.descriptors["bias"].shape == (1, 4, 260, 264)
    assert launches(260)[-1].descriptors["bias"].shape == (2, 4, 260, 260)
    # What is repeated is copied once.
    assert launches(260, (260 * 260, 0, 260, 1))[-1].descriptors["bias"].shape == (2, 1, 260, 260)
    assert launches(260, (260, 0, 0, 1))[-1].descriptors["bias"].shape == (2, 1, 1, 260)


class Scalars:
    """What kernels compute with scalars, on Python's own numbers."""

    maximum, minimum = max, min

    @staticmethod
    def cdiv(x: int, y: int) -> int:
        return -(-x // y)


def on_numbers(kernel: Any, **called: Any) -> Callable[..., Any]:
    """A function of a kernel, all in scalars, as one of Python; and those that it calls."""
    return FunctionType(kernel.fn.__code__, {"gl": Scalars, "tl": Scalars, "range": range, **called})


SIDE = st.none() | st.integers(0, 300)
WINDOW = st.builds(Window, SIDE, SIDE)
SIZE = st.integers(1, 500)


def visible(queries: range, keys: range, i_to_j: int, window: Window) -> list[bool]:
    return [
        (window.before is None or j >= i + i_to_j - window.before)
        and (window.after is None or j <= i + i_to_j + window.after)
        for i in queries
        for j in keys
    ]


@given(SIZE, SIZE, WINDOW, st.integers(0, 3), st.booleans())
def test_blocks_are_left_out_or_unmasked_only_where_no_pair_is_wrong(
    queries: int, keys: int, window: Window, tile: int, half: bool
) -> None:
    at = 128 * tile
    assume(at < queries)
    low, high = on_numbers(schedule.blocks_seen)(at, queries, keys, window, 128, 128)
    own = at + 64 * half
    bottom, top = on_numbers(schedule.unmasked)(own, queries, keys, low, high, window, 64, 128)
    assert 0 <= low <= bottom <= top < high
    rows = range(own, min(own + 64, queries))
    for block in range(-(-keys // 128)):
        pairs = visible(rows, range(128 * block, min(128 * block + 128, keys)), keys - queries, window)
        if not low <= block < high:
            assert not any(pairs)
        if bottom <= block < top:
            assert all(pairs)
            assert 128 * block + 128 <= keys


@given(SIZE, SIZE, WINDOW, st.integers(0, 3), st.booleans(), st.sampled_from((64, 128)), st.sampled_from((64, 128)))
def test_a_step_is_unmasked_only_where_no_pair_is_wrong(
    queries: int, keys: int, window: Window, tile: int, listed: bool, size: int, own: int
) -> None:
    at = own * tile
    assume(at < keys)
    low, steps = on_numbers(schedule.queries_seen)(at, queries, keys, window, own, size)
    bottom, top = on_numbers(schedule.queries_unmasked)(at, low, steps, queries, keys, window, own, size, listed)
    assert low <= bottom <= top <= low + steps
    for m in range(bottom, top):
        rows = range(size * m, size * m + size)
        assert at + own <= keys
        assert all(visible(rows, range(at, at + own), keys - queries, window))
        assert not listed or rows.stop <= queries


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 50))
def test_tickets_are_all_tiles_and_come_later_for_later_tiles(tiles_of_row: int, rows: int, section: int) -> None:
    section = min(section, rows)
    drawn = [on_numbers(schedule.of_section)(t, tiles_of_row, rows, section) for t in range(tiles_of_row * rows)]
    assert sorted(drawn) == [(row, tile) for row in range(rows) for tile in range(tiles_of_row)]
    for row in range(rows):
        assert [tile for other, tile in drawn if other == row] == list(range(tiles_of_row))


@given(st.integers(1, 40), st.integers(1, 200))
def test_programs_that_draw_no_tiles_take_one_of_each_round(programs: int, tiles: int) -> None:
    taken = []
    for t in range(programs):
        own = []
        while t < tiles:
            own.append(t)
            t = on_numbers(schedule.there_and_back)(t, programs)
        assert [tile // programs for tile in own] == list(range(len(own)))
        taken += own
    assert sorted(taken) == list(range(tiles))


def test_tiles_are_drawn_where_they_are_many_or_their_lengths_unknown() -> None:
    def draws(T: int = 1024, **how: Any) -> bool:
        program = Forward(HOPPER_OP, spec_of(OP, case("call", (1, T, T, 16, 16, 128), **how))).program({}, HOPPER)
        assert program is not None
        (cleared,) = (array.zeroed for array in program.scratch if array.name == "counter")
        return cleared

    bounds = (0, 100, 1024)
    assert not draws(causal=True)
    assert draws(8192, causal=True)
    assert draws(packed=(bounds, bounds))
    assert draws(segments=((0,) * 1024,))


@given(SIZE, SIZE, WINDOW, st.sampled_from((64, 128)))
def test_every_tile_of_keys_that_sees_a_tile_of_queries_has_a_turn(
    queries: int, keys: int, window: Window, size: int
) -> None:
    turns: Counter[int] = Counter()  # of the tiles of queries, in the order of the tiles of keys
    for at in range(0, keys, 128):
        low, steps = on_numbers(schedule.queries_seen)(at, queries, keys, window, 128, size)
        walked = range(low, low + steps)
        for m in range(-(-queries // size)):
            rows = range(size * m, min(size * m + size, queries))
            if any(visible(rows, range(at, min(at + 128, keys)), keys - queries, window)):
                assert m in walked
        for m in walked:
            assert turns[m] == on_numbers(schedule.turn_of)(at, size * m, queries, keys, window, 128)
            turns[m] += 1
    for m in range(-(-queries // size)):
        turns_of = on_numbers(schedule.turns_of, turn_of=on_numbers(schedule.turn_of))
        assert turns[m] == turns_of(size * m, queries, keys, window, size, 128)
