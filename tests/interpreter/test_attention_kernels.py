"""Attention in Triton's interpreter with small tiles, so that small calls have whole tiles and those at a border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from retrograd import attention, attention_qkvpacked
from retrograd.core.arch import SUPPORTED
from retrograd.core.room import Room
from retrograd.core.torch.launch import Runner
from retrograd.ops.attention.triton.pairs import owner_of
from retrograd.ops.attention.triton.plan import Plan, Tile
from retrograd.ops.rooms import room
from retrograd.testing import contract
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options
from retrograd.testing.interpreter import Interpreter, as_float16, interpreted, launched_by

ATTENTION = room("attention")
SMALL = Plan(Tile(32, 32, 4), Tile(16, 32, 4), Tile(16, 32, 4), Tile(16, 32, 4))
MOST_DRAWS = 1  # of a case: errors beyond rounding show in one draw, and the interpreter is slow
BOTH = ("sm_80", "sm_90")  # by strides, and through tensor descriptors
ARCHES = pytest.mark.parametrize("arch", BOTH)


def with_small_tiles() -> Room:
    assert ATTENTION.op is not None
    return replace(ATTENTION, op=replace(ATTENTION.op, replan=lambda _: SMALL)).variant()


@ARCHES
@pytest.mark.parametrize(
    "name", ["causal", "causal_more_keys", "window", "window_causal", "packed_tiles", "dropout", "bias_of_batch"]
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
