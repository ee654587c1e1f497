"""How selective_scan's Hopper kernels split time: each step is in one span; no split where the GPU is full."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrograd.opinfo.info import spec_of
from retrograd.ops.selective_scan.cases import bench
from retrograd.ops.selective_scan.hopper import plan as spans
from retrograd.ops.selective_scan.hopper.launches import channels_of
from retrograd.ops.selective_scan.op import OP, Spec


def spec(batch: int, channels: int, time: int, N: int = 16) -> Spec:
    checked: Spec = spec_of(OP, bench(batch, channels, time, N))
    return checked


def both(call: Spec) -> tuple[spans.Spans, spans.Spans]:
    return spans.forward(call, channels_of(call, "fwd")), spans.backward(call, channels_of(call, "bwd"))


@given(st.integers(1, 9), st.sampled_from([64, 768, 1536, 4096]), st.integers(0, 200_000), st.sampled_from([8, 16, 64]))
def test_spans_cover_every_step_and_begin_where_pieces_do(batch: int, channels: int, time: int, N: int) -> None:
    call = spec(batch, channels, time, N)
    for plan in both(call):
        steps = plan.chunks * call.chunk
        assert steps % spans.PIECE == 0
        assert (plan.count - 1) * steps < max(time, 1) <= plan.count * steps


@given(st.integers(0, 200_000), st.sampled_from([1, 3, 2**20]))
def test_other_spans_cover_every_step_too(time: int, pieces: int) -> None:
    for plan in both(spec(1, 1536, time)):
        cut = plan.cut(pieces)
        assert cut.programs == plan.programs
        assert (cut.count - 1) * cut.chunks * cut.chunk < max(time, 1) <= cut.count * cut.chunks * cut.chunk


@pytest.mark.parametrize("time", [100, 2048, 65536])
def test_a_gpu_that_is_full_walks_whole_sequences(time: int) -> None:
    assert [plan.count for plan in both(spec(8, 2048, time))] == [1, 1]


@pytest.mark.parametrize(("channels", "time"), [(1536, 2048), (4096, 65536)])
def test_a_sequence_alone_is_walked_by_many(channels: int, time: int) -> None:
    forward, backward = both(spec(1, channels, time))
    assert forward.programs * forward.count >= 3 * spans.MULTIPROCESSORS
    assert backward.programs * backward.count >= 0.9 * spans.MULTIPROCESSORS


@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 200), st.integers(1, 50))
def test_programs_in_turn_end_when_a_queue_says_so(many: int, long: int, more: int, short: int) -> None:
    short = min(long, short)
    ready = [0] * spans.MULTIPROCESSORS
    for length in [long] * many + [short] * more:
        heapq.heapreplace(ready, ready[0] + length)
    # In the formula a program begins after all long ones of its wave have ended, so it is late by less than one.
    assert 0 <= spans.in_turn(many, long, more, short) - max(ready) < long + short
