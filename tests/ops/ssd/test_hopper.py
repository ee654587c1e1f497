"""ssd's kernels for Hopper: the calls they take, reads without a copy, and the split of walks into spans of time."""

from __future__ import annotations

from typing import Any

import pytest
from checks import programs
from hypothesis import given
from hypothesis import strategies as st

from retrograd.core.arch import SUPPORTED
from retrograd.core.op import Backward
from retrograd.core.program import Layout, dense
from retrograd.core.spec import Pass
from retrograd.opinfo.info import spec_of
from retrograd.ops.infos import info
from retrograd.ops.ssd.cases import MAMBA, case
from retrograd.ops.ssd.hopper import launches, plan
from retrograd.ops.ssd.hopper.arrays import PairCall
from retrograd.ops.ssd.op import OP, Spec

HOPPER = SUPPORTED["sm_90"]
SHAPE = (2, 300, 6, 64, 2, 128)


def spec(shape: tuple[int, int, int, int, int, int] = SHAPE, **how: Any) -> Spec:
    checked: Spec = spec_of(OP, case("call", shape, **how))
    return checked


def taken(spec: Spec, which: Pass, arch: str = "sm_90") -> bool:
    (hopper,) = OP.only("hopper").implementations
    return hopper.has(spec, SUPPORTED[arch], which)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"dtype": "float16"},
        {"given": frozenset()},
        {"dt_limit": (-1.0, 1.0)},
        {"dt_dtype": "float32"},
        {"shape": (2, 300, 6, 256, 3, 64)},
        {"shape": (2, 300, 6, 64, 2, 256)},
        {"shape": (1, 300, 6, 64, 3, 64), "cu_seqlens": (5, 100, 300), "initial_state": True},
    ],
)
def test_calls_of_16_bits_in_whole_slices_are_taken(how: dict[str, Any]) -> None:
    assert taken(spec(**how), "fwd")
    assert taken(spec(**how), "bwd")


@pytest.mark.parametrize(
    "how",
    [
        {"dtype": "float32"},
        {"matrix_dtype": "float32"},
        {"given": MAMBA | {"z"}},
        {"shape": (2, 300, 6, 96, 2, 128)},
        {"shape": (2, 300, 6, 64, 2, 96)},
    ],
)
def test_all_others_go_to_the_kernels_for_any_gpu(how: dict[str, Any]) -> None:
    assert not taken(spec(**how), "fwd")
    assert not taken(spec(**how), "bwd")


def test_the_gradient_of_a_skip_a_channel_is_left_to_the_kernels_for_any_gpu() -> None:
    assert taken(spec(wide_D=True), "fwd")
    assert not taken(spec(wide_D=True), "bwd")


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "gfx942", "gfx950"])
def test_other_architectures_have_no_such_instructions(arch: str) -> None:
    assert not taken(spec(), "fwd", arch)


def test_an_array_is_read_where_it_lies_if_the_heads_of_a_step_are_one_row() -> None:
    x, B = spec().x, spec().B
    assert launches.in_place("x", x, Layout(dense(x.shape), aligned=True))
    wide = (300 * 1024, 1024, 64, 1)  # a part of each step's columns
    assert launches.in_place("x", x, Layout(wide, aligned=True))
    assert not launches.in_place("x", x, Layout((300 * 1024, 1024, 128, 1), aligned=True))
    assert launches.in_place("B", B, Layout((300 * 1024, 1024, 512, 1), aligned=True))
    assert not launches.in_place("B", B, Layout((128, 0, 128, 1), aligned=True))  # the same row at every step


def planned(call: Spec) -> plan.Spans:
    return plan.planned(call, HOPPER, "fwd").spans


@given(st.integers(1, 9), st.integers(1, 200), st.integers(0, 70_000))
def test_spans_cover_every_step_and_begin_where_places_do(batch: int, heads: int, time: int) -> None:
    call = spec((batch, time, heads, 64, 1, 128))
    spans = planned(call)
    assert spans.whole + spans.cut == plan.walks(call)
    assert spans.blocks % 2 == 0
    if spans.count > 1:
        steps = spans.blocks * plan.STEPS
        assert (spans.count - 1) * steps < time <= spans.count * steps
        assert spans.programs - spans.whole <= plan.MULTIPROCESSORS


def test_what_is_left_of_full_rounds_is_cut_and_few_walks_are_cut_into_many_spans() -> None:
    main = spec((8, 4096, 80, 64, 1, 128))
    assert plan.walks(main) == 320
    assert planned(main) == plan.Spans(whole=264, cut=56, blocks=32, count=2, slots=32)
    alone = planned(spec((1, 65536, 24, 64, 1, 128)))
    assert alone.programs > 0.9 * plan.MULTIPROCESSORS
    assert planned(spec((11, 4096, 24, 64, 1, 128))).count == 1


def test_a_plan_is_cut_again_by_a_share_of_its_walks() -> None:
    spans = planned(spec((8, 4096, 80, 64, 1, 128)))
    assert spans.recut(0.5, 3) == plan.Spans(whole=160, cut=160, blocks=6, count=11, slots=32)
    for whole in (spans.recut(0.0, 1), spans.recut(1.0, 32)):
        assert (whole.programs, whole.whole, whole.count) == (320, 320, 1)


def test_walks_that_are_cut_launch_what_finds_their_spans_beginnings() -> None:
    def kernels(shape: tuple[int, int, int, int, int, int]) -> list[str]:
        return [one.kernel.__name__ for _, one in programs.launches(info("ssd"), case("call", shape), HOPPER)]

    assert kernels((1, 1024, 24, 64, 1, 128))[:3] == ["prepare", "ahead", "walk"]
    assert kernels((1, 128, 24, 64, 1, 128))[:2] == ["prepare", "walk"]


def test_the_walk_ahead_takes_so_few_states_a_program_that_each_has_a_multiprocessor() -> None:
    assert plan.columns(24, 128) == 32
    assert plan.columns(40, 128) == 64
    assert plan.columns(112, 128) == 128
    assert plan.columns(112, 64) == 64


def test_with_more_than_128_states_every_second_place_has_a_kept_one_and_the_backward_pass_finds_the_others() -> None:
    call = case("call", (1, 1024, 24, 64, 1, 256))
    kernels = [one.kernel.__name__ for _, one in programs.launches(info("ssd"), call, HOPPER)]
    assert kernels.count("middle") == 1
    checked = spec((1, 1024, 24, 64, 1, 256))
    program = OP.backward(checked, frozenset()).program({}, HOPPER)
    assert program is not None
    middle = next(array for array in program.scratch if array.name == "middle")
    states = checked["states"]
    assert states is not None
    assert middle.shape == states.shape == (1, 4, 24, 64, 256)


@given(st.integers(1, 9), st.integers(1, 300), st.integers(1, 5000))
def test_the_programs_that_sum_over_heads_take_all_of_their_blocks(batch: int, heads: int, time: int) -> None:
    shape = (batch, time, heads, 64, 1, 128)
    checked = spec(shape)
    blocks, slots = plan.head_blocks(checked), batch * -(-time // 128)  # one group
    assert (blocks - 1) * plan.heads(checked) < heads <= blocks * plan.heads(checked)
    all_launches = programs.launches(info("ssd"), case("call", shape), HOPPER)
    found = [one for _, one in all_launches if one.kernel.__name__ == "pairs"]
    for one in found:
        call = one.scalars["call"]
        assert isinstance(call, PairCall)
        each = call.each
        assert one.grid == slots * -(-blocks // each)
    assert len(found) == 2


def test_a_program_takes_several_blocks_of_heads_where_there_are_programs_enough() -> None:
    assert plan.together(2, 256, 40) == 2  # B8 T4096 H80
    assert plan.together(2, 64, 40) == 1  # B1 T8192 H80
    assert plan.together(1, 256, 24) == 1


@given(st.integers(1, 9), st.integers(1, 200), st.integers(129, 70_000))
def test_the_programs_that_find_the_states_between_kept_ones_take_all_heads(batch: int, heads: int, time: int) -> None:
    checked = spec((batch, time, heads, 64, 1, 256))
    all_launches = programs.launches(info("ssd"), case("call", (batch, time, heads, 64, 1, 256)), HOPPER)
    (found,) = [one for _, one in all_launches if one.kernel.__name__ == "middle"]
    each = found.scalars["each"]
    assert isinstance(each, int)
    assert 1 <= each <= min(heads, plan.MIDDLE_SLICES)
    assert found.grid == batch * checked.chunks * 2 * -(-heads // each)
    assert each == 1 or found.grid >= plan.MULTIPROCESSORS


def test_few_heads_are_summed_in_two_blocks_so_that_a_place_has_two_programs() -> None:
    def blocks(heads: int, groups: int = 1, N: int = 128) -> tuple[int, int]:
        checked = spec((1, 300, heads, 64, groups, N))
        return groups * plan.head_blocks(checked), plan.heads(checked)

    assert blocks(1) == (1, 1)
    assert blocks(24) == (2, 12)
    assert blocks(80) == (2, 40)
    assert blocks(83) == (3, 28)
    assert blocks(16, groups=8) == (8, 2)
    assert blocks(24, N=256) == (1, 24)  # each slot already has two programs
    assert blocks(128, N=256) == (2, 64)


@pytest.mark.parametrize("which", ["sm_90", "sm_80"])
def test_gradients_of_x_and_states_alone_take_no_launch_for_the_others(which: str) -> None:
    def kernels(wanted: frozenset[str]) -> set[str]:
        program = Backward(OP, spec(initial_state=True), wanted).program({}, SUPPORTED[which])
        assert program is not None
        return {launch.kernel.__name__ for launch in program.launches}

    few = kernels(frozenset({"x", "initial_state"}))
    assert not few & {"pairs", "through_states", "finish", "sum_blocks", "sum_rows"}
    assert few < kernels(frozenset({"x", "B"}))
