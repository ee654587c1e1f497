"""Attention in Triton's interpreter with small tiles, so that small calls have whole tiles and those at a border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from checks import contract
from checks.interpreter import Interpreter, as_float16, interpreted, launched_by

from retrograd import attention, attention_qkvpacked
from retrograd.core.arch import SUPPORTED
from retrograd.core.torch.launch import Runner
from retrograd.opinfo.info import OpInfo
from retrograd.ops.attention.hopper.schedule import list_tiles
from retrograd.ops.attention.hopper.tuples import ListSizes
from retrograd.ops.attention.triton.pairs import owner_of
from retrograd.ops.attention.triton.plan import Plan, Tile
from retrograd.ops.infos import info
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options

ATTENTION = info("attention")
SMALL = Plan(Tile(32, 32, 4), Tile(16, 32, 4), Tile(16, 32, 4), Tile(16, 32, 4))
MOST_DRAWS = 1  # of a case: errors beyond rounding show in one draw, and the interpreter is slow
BOTH = ("sm_80", "sm_90")  # by strides, and through tensor descriptors
ARCHES = pytest.mark.parametrize("arch", BOTH)
MOSTLY_DESCRIBED = pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])


def with_small_tiles() -> OpInfo:
    assert ATTENTION.op is not None
    return replace(ATTENTION, op=replace(ATTENTION.op, replan=lambda _: SMALL)).variant()


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        *((name, arch) for name in ("causal", "causal_more_keys", "window", "window_causal") for arch in BOTH),
        *((name, "sm_90") for name in ("packed_tiles", "dropout", "bias_of_batch")),
        *(pytest.param(name, "sm_80", marks=pytest.mark.slow) for name in ("packed_tiles", "dropout", "bias_of_batch")),
    ],
)
def test_whole_tiles_and_those_at_a_border_keep_the_error_budget(name: str, arch: str, seed: int) -> None:
    with interpreted(arch):
        contract.check_errors(with_small_tiles(), as_float16(ATTENTION.case(name)), "cpu", seed, most_draws=MOST_DRAWS)


@pytest.mark.parametrize("name", ["causal", "window", pytest.param("packed_tiles", marks=pytest.mark.slow)])
def test_strides_and_descriptors_give_the_same_bits(name: str, seed: int) -> None:
    case = as_float16(ATTENTION.case(name))
    inputs, gradients = contract.drawn(ATTENTION, case, "cpu", seed)
    found = []
    for arch in BOTH:
        with interpreted(arch):
            found.append(call(with_small_tiles().torch, inputs, options(case), gradients))
    assert_same_bits(found[0], found[1], name)


@pytest.mark.parametrize(
    ("name", "arch"),
    [("packed", "sm_80"), ("packed", "sm_90"), *(pytest.param("packed_gaps", a, marks=pytest.mark.slow) for a in BOTH)],
)
def test_a_packed_sequence_has_the_same_bits_alone(name: str, arch: str, seed: int) -> None:
    with interpreted(arch):
        contract.check_packed(with_small_tiles(), as_float16(ATTENTION.case(name)), "cpu", seed)


def test_a_query_with_its_keys_alone_has_the_bits_of_the_whole() -> None:
    q, k, v = torch.randn(3, 1, 80, 2, 16, dtype=torch.float16)
    with interpreted():
        attention = with_small_tiles().torch
        whole = attention(q, k, v, causal=True)
        for t in (0, 31, 32, 79):
            one = attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], causal=True)
            assert torch.equal(one[:, 0], whole[:, t])


def test_the_widest_window_is_none() -> None:
    q, k, v = torch.randn(3, 1, 80, 2, 16, dtype=torch.float16)
    with interpreted():
        attention = with_small_tiles().torch
        assert torch.equal(attention(q, k, v, window=(2**31 - 1, 2**31 - 1)), attention(q, k, v))


def bounds_of(ids: list[int]) -> tuple[list[int], list[bool]]:
    """Where the runs of a row's ids begin, with its end, and whether each is a sequence."""
    first = [step for step, own in enumerate(ids) if step == 0 or own != ids[step - 1]]
    return [*first, len(ids)], [ids[step] >= 0 for step in first]


SEGMENTED = [case for case in ATTENTION.tagged("interpreter") if "segment_ids" in case.inputs]
NAMES = [case.name for case in SEGMENTED if "bias" not in case.inputs]
LAYOUTS = {"dense": (0, 0), "heads first": (1, 2), "steps first": (0, 1)}  # axes that are exchanged in memory


@pytest.mark.parametrize(
    ("name", "layout", "arch"),
    [
        ("segments", "steps first", "sm_90"),
        *(
            pytest.param(name, layout, arch, marks=pytest.mark.slow)
            for name in NAMES
            for layout in LAYOUTS
            for arch in BOTH
        ),
    ],
)
def test_runs_of_ids_have_the_bits_of_packed_sequences(name: str, arch: str, layout: str, seed: int) -> None:
    """Each row packed alone; with dropout, which depends on a row's number, only the first is."""
    case = as_float16(ATTENTION.case(name))
    inputs, gradients = contract.drawn(ATTENTION, case, "cpu", seed)
    for array in ("q", "k", "v"):
        inputs[array] = inputs[array].transpose(*LAYOUTS[layout]).contiguous().transpose(*LAYOUTS[layout])
    ids = inputs.pop("segment_ids")
    shared = {"alibi_slopes", "sinks", "dropout_seed"}
    with interpreted(arch):
        attention = with_small_tiles().torch
        found = call(attention, {**inputs, "segment_ids": ids}, options(case), gradients)
        for row in range(1 if "dropout_seed" in inputs else len(ids)):
            own = {n: t if n in shared else t[row : row + 1] for n, t in inputs.items()}
            bounds, kept = bounds_of(ids[row].tolist())
            cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
            incoming = [gradient[row : row + 1] for gradient in gradients]
            both = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
            expected = call(attention, {**own, **both}, options(case), incoming)
            inside = torch.repeat_interleave(torch.tensor(kept), cu_seqlens.diff())
            for output, tensor in expected.items():
                if output.removeprefix("d ") not in shared:
                    time = 2 if output == "output 1" else 1
                    mask = inside.reshape([-1 if axis == time else 1 for axis in range(tensor.dim())])
                    right = {output: torch.where(mask, tensor, 0)}
                    assert_same_bits({output: found[output][row : row + 1]}, right, f"{name}, row {row}")


@MOSTLY_DESCRIBED
def test_gradients_that_runs_of_ids_share_have_the_bits_of_packed_sequences(arch: str, seed: int) -> None:
    """Those of slopes: rows of ids one after the other are a packed row."""
    case = as_float16(ATTENTION.case("segments_everything"))
    inputs, gradients = contract.drawn(ATTENTION, case, "cpu", seed)
    steps = inputs["segment_ids"].shape[1]
    ids = torch.arange(2 * steps, dtype=torch.int32).reshape(2, steps) // 7
    bounds = torch.tensor(sorted({*range(0, 2 * steps, 7), steps, 2 * steps}), dtype=torch.int32)
    flat = {n: t.flatten(0, 1)[None] if n in ("q", "k", "v") else t for n, t in inputs.items() if n != "segment_ids"}
    incoming = [gradients[0].flatten(0, 1)[None], gradients[1].transpose(0, 1).flatten(1, 2)[None]]
    with interpreted(arch):
        attention = with_small_tiles().torch
        found = call(attention, {**inputs, "segment_ids": ids}, options(case), gradients)
        packed = {**flat, "cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
        expected = call(attention, packed, options(case), incoming)
    assert_same_bits({"d": found["d alibi_slopes"]}, {"d": expected["d alibi_slopes"]}, "slopes")


@MOSTLY_DESCRIBED
def test_nan_at_steps_of_no_sequence_reaches_nothing(arch: str, seed: int) -> None:
    case = as_float16(ATTENTION.case("segments_everything"))
    inputs, gradients = contract.drawn(ATTENTION, case, "cpu", seed)
    outside = inputs["segment_ids"] < 0
    assert outside.any()
    with interpreted(arch):
        attention = with_small_tiles().torch
        expected = call(attention, inputs, options(case), gradients)
        for tensor in (*(inputs[name] for name in ("q", "k", "v")), gradients[0]):
            tensor[outside] = torch.nan
        gradients[1].transpose(1, 2)[outside] = torch.nan
        found = call(attention, inputs, options(case), gradients)
    assert_same_bits(found, expected, "beside NaN")
    for name in ("y", "d q", "d k", "d v"):
        assert not found[name][outside].any()


def test_more_runs_than_one_block_lists() -> None:
    q, k, v = torch.randn(3, 2, 1100, 1, 16, dtype=torch.float16)
    ids = (torch.arange(2 * 1100, dtype=torch.int32) // 70).reshape(2, 1100)
    with interpreted():
        out = with_small_tiles().torch(q, k, v, segment_ids=ids)
        last = with_small_tiles().torch(*(t[1:, 20:90] for t in (q, k, v)))
    assert torch.equal(out[1:, 20:90], last)


def test_programs_take_several_runs_of_one_step() -> None:
    q, k, v = torch.randn(3, 2, 70, 1, 16, dtype=torch.float16)
    ids = torch.arange(2 * 70, dtype=torch.int32).reshape(2, 70)
    with interpreted():
        assert torch.equal(with_small_tiles().torch(q, k, v, segment_ids=ids), v)


class Keeping(Interpreter):
    """Keeps shape and address of the first array that the last program returned."""

    first: tuple[Any, int]

    def prepare(self, *given: Any) -> Runner:
        run = super().prepare(*given)

        def keep(tensors: Sequence[Any]) -> list[Any]:
            returned = run(tensors)
            self.first = returned[0].shape, returned[0].data_ptr()
            return returned

        return keep


@ARCHES
@pytest.mark.parametrize(
    ("shape", "bounds", "backward"),
    [
        ((2, 20, 3, 2, 16), None, "split"),
        ((2, 20, 3, 2, 16), None, "fused"),
        ((1, 70, 3, 2, 16), [2, 40, 66], "split"),
        ((2, 9, 3, 1, 5), None, "split"),
    ],
    ids=["batch", "fused", "packed", "unaligned"],
)
def test_the_gradients_of_a_packed_qkv_are_written_into_one_array(
    shape: tuple[int, ...], bounds: list[int] | None, backward: Any, arch: str
) -> None:
    qkv = torch.randn(shape, dtype=torch.float16, requires_grad=True)
    sinks = torch.randn(shape[3], requires_grad=True)
    cu = None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
    dout = torch.randn(*shape[:2], *shape[3:], dtype=torch.float16)
    with launched_by(launcher := Keeping(SUPPORTED[arch])):
        out: Any = attention_qkvpacked(qkv, sinks=sinks, cu_seqlens=cu, causal=True, backward=backward)
        out.backward(dout)
        assert qkv.grad is not None
        assert launcher.first == (shape, qkv.grad.data_ptr())
        apart = [*(t.detach().requires_grad_() for t in qkv.unbind(2)), sinks.detach().requires_grad_()]
        q, k, v, _ = apart
        how: dict[str, Any] = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "causal": True, "backward": backward}
        expected = attention(q, k, v, sinks=apart[3], **how)
        *gradients, dsinks = torch.autograd.grad(expected, apart, dout)
    assert torch.equal(out, expected)
    assert torch.equal(qkv.grad, torch.stack(gradients, 2))
    assert sinks.grad is not None
    assert torch.equal(sinks.grad, dsinks)


@triton.jit
def owners(cu_ptr, sequences, owners_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The owner of every seventh tile."""
    for i in range(count):
        tl.store(owners_ptr + i, owner_of(cu_ptr, 7 * i, sequences, BLOCK))


@pytest.mark.parametrize("sequences", [1, 2, 513, 1200])
def test_a_tile_finds_its_sequence_among_many(sequences: int) -> None:
    lengths = torch.randint(0, 9, (sequences,), generator=torch.Generator().manual_seed(sequences))
    cu = torch.cat([torch.zeros(1), lengths.cumsum(0)]).to(torch.int32)
    first = cu[:-1] // 4 + torch.arange(sequences)  # tile of each sequence
    tiles = torch.arange(0, int(cu[-1]) // 4 + sequences, 7)
    found = torch.full((len(tiles),), -1, dtype=torch.int32)
    owners[(1,)](cu, sequences, found, len(tiles), BLOCK=4)
    expected = torch.searchsorted(first, tiles, right=True) - 1
    assert torch.equal(found.long(), expected)


@pytest.mark.parametrize(
    "bounds", [(0, 40), (0, 0, 3, 17, 40), (5, 9, 9, 30), (0, 0), (40, 40), (13, 13), tuple(range(2, 40))]
)
def test_listed_tiles_cover_every_step_once(bounds: tuple[int, ...]) -> None:
    T, block, sequences = 40, 8, len(bounds) - 1
    q, k = (torch.tensor(bounds, dtype=torch.int32) + shift for shift in (0, 3))
    tile_list = torch.full((T // block + sequences + 2, 8), -1, dtype=torch.int32)
    sizes = ListSizes(T, T + 3, sequences, len(tile_list))
    list_tiles[(2,)](q, k, None, tile_list, sizes, BLOCK=block, TILES=64, OVERLAP=False)
    covered = torch.zeros(T, dtype=torch.int32)
    for first_q, queries, first_k, keys, at, outside, _, _ in tile_list.tolist():
        steps = range(first_q + at, first_q + min(at + block, queries))
        covered[list(steps)] += 1
        for step in steps:
            inside = bounds[0] <= step < bounds[-1]
            assert outside == (not inside)
            if inside:
                own = max(i for i in range(sequences) if bounds[i] <= step)
                assert (first_q, queries) == (bounds[own], bounds[own + 1] - bounds[own])
                assert (first_k, keys) == (bounds[own] + 3, queries)
            else:
                assert keys == 0
    assert covered.tolist() == [1] * T


@pytest.mark.parametrize(
    "ids", [((0,) * 20,), ((3,) * 7 + (-1,) * 2 + (3,) * 11, (-2,) + (5,) * 19), (tuple(range(20)), (-1,) * 20)]
)
def test_listed_tiles_of_runs_cover_every_step_of_all_rows_once(ids: tuple[tuple[int, ...], ...]) -> None:
    steps = [(row, step) for row, labels in enumerate(ids) for step in range(len(labels))]
    starts = [n for n, (row, step) in enumerate(steps) if step == 0 or ids[row][step] != ids[row][step - 1]]
    label = [ids[row][step] for row, step in steps]
    listed = [-1 - start if label[start] < 0 else start for start in starts]
    runs = torch.tensor([len(starts), *listed, len(steps)], dtype=torch.int32)
    total, block = len(steps), 8
    tile_list = torch.full((total // block + total, 8), -1, dtype=torch.int32)
    sizes = ListSizes(total, total, 0, len(tile_list))
    list_tiles[(2,)](None, None, runs, tile_list, sizes, BLOCK=block, TILES=64, OVERLAP=False)
    covered = torch.zeros(total, dtype=torch.int32)
    for first, count, other_first, others, at, outside, number, _ in tile_list[: total // block + len(starts)].tolist():
        own = range(first + at, first + min(at + block, count))
        covered[list(own)] += 1
        for step in own:
            assert starts[number] == first == other_first
            assert {label[first + n] for n in range(count)} == {label[step]}
            assert (outside, others) == ((1, 0) if label[step] < 0 else (0, count))
    assert covered.tolist() == [1] * total
