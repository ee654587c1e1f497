"""The sums over channels on the tensor cores: the kernels' inline PTX, interpreted here for the lanes of a warp."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from retrograd.ops.selective_scan.hopper import channel_sum

LANES = np.arange(32)
QUAD, PLACE = LANES // 4, LANES % 4  # PLACE: in the quad
TF32 = 0xFFFFE000  # the bits that the tensor cores read
Registers = dict[str, Any]  # name -> 32 lanes: bits as uint32, or a predicate


def execute(text: str, operands: Registers) -> Registers:
    """Interpret inline assembly for a warp; supports only the instructions that `channel_sum` emits."""
    values = dict(operands)
    body = re.fullmatch(r"\{(.*)\}", text, re.DOTALL)
    assert body is not None
    for line in body[1].split(";"):
        if line.strip() and not line.strip().startswith(".reg"):
            operation, rest = line.split(None, 1)
            step(operation, [word.strip() for word in re.findall(r"\{[^}]*\}|[^,\s][^,]*", rest)], values)
    return values


def step(operation: str, words: list[str], values: Registers) -> None:
    """One instruction; a register that was not written before is an error."""

    def bits(word: str) -> Any:
        if word.startswith("0f"):
            return np.full(32, int(word[2:], 16), np.uint32)
        return np.full(32, int(word, 0), np.uint32) if word[0].isdigit() else values[word]

    def number(word: str) -> Any:
        return bits(word).view(np.float32)

    to, *args = words
    match operation:
        case "mov.f32" | "mov.b32":
            values[to] = bits(args[0]).copy()
        case "and.b32":
            values[to] = bits(args[0]) & bits(args[1])
        case "sub.rn.f32":
            values[to] = (number(args[0]) - number(args[1])).view(np.uint32)
        case "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32":
            names, *matrices = ([name.strip() for name in word[1:-1].split(",")] for word in words)
            results = product(*([bits(name) for name in matrix] for matrix in matrices))
            values.update(zip(names, results, strict=True))
        case _:
            raise AssertionError(f"{operation} is not emulated")


def product(a: list[Any], b: list[Any], c: list[Any]) -> Iterator[Any]:
    """D = A B + C of the tensor cores, with the element layout that PTX specifies for mma.m16n8k8 with tf32."""
    at_a = [(QUAD, PLACE), (QUAD + 8, PLACE), (QUAD, PLACE + 4), (QUAD + 8, PLACE + 4)]
    at_b = [(PLACE, QUAD), (PLACE + 4, QUAD)]
    at_c = [(QUAD, 2 * PLACE), (QUAD, 2 * PLACE + 1), (QUAD + 8, 2 * PLACE), (QUAD + 8, 2 * PLACE + 1)]
    A, B, C = np.zeros((16, 8)), np.zeros((8, 8)), np.zeros((16, 8))
    for matrix, slots, registers, kept in ((A, at_a, a, TF32), (B, at_b, b, TF32), (C, at_c, c, 0xFFFFFFFF)):
        for where, register in zip(slots, registers, strict=True):
            matrix[where] = (register & np.uint32(kept)).view(np.float32)
    D = (A @ B + C).astype(np.float32)
    return (D[where].view(np.uint32) for where in at_c)


def held(N: int) -> tuple[Any, Any]:
    """Channel and state of each (register, lane) of a warp, by the layout's bases."""
    layout = channel_sum.own_layout(256 // N, N, 1)
    at = np.zeros((8, 32, 2), int)
    for indices, bases in ((np.arange(8)[:, None], layout.reg_bases), (LANES[None, :], layout.lane_bases)):
        for i, base in enumerate(bases):
            at ^= np.where((indices >> i & 1)[..., None] == 1, base, 0)
    return at[..., 0], at[..., 1]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("N", [8, 16, 32, 64])
def test_every_sum_over_channels_is_where_place_says(N: int, split: bool) -> None:
    random = np.random.default_rng(N + split)
    steps, channels = channel_sum.STEPS.value, 256 // N
    d, n = held(N)
    terms = random.standard_normal((steps, 2, channels, N)).astype(np.float32)
    sums = np.full((8, 32), np.nan, np.float32).view(np.uint32)
    for t in reversed(range(steps)):  # the order does not matter
        blocks = [sums, sums, *(part[d, n].view(np.uint32) for part in terms[t])]
        blocks.append((np.arange(8)[:, None] == QUAD).astype(np.float32).view(np.uint32))
        operands = {f"${8 * i + r}": block[r] for i, block in enumerate(blocks) for r in range(8)}
        after = execute(channel_sum._text(t, split), operands)
        assert all(after[f"${i}"] is operands[f"${i}"] for i in range(8, 40)), "an input is overwritten"
        sums = np.stack([after[f"${r}"] for r in range(8)])

    # `finish` adds the quads of the same states: row p of (4, N) is the sum of rows p, p + 4, ...
    found = np.zeros((4, N))
    np.add.at(found, (d % 4, n), sums.view(np.float32).astype(np.float64))
    rows, columns = np.indices(found.shape)
    step, which, state = channel_sum.position.fn(rows, columns)
    expected = terms.sum(2, dtype=np.float64)[step, which, state]
    size = np.abs(terms).sum(2)[step, which, state]
    # tf32 has 10 bits after the leading one and the others are truncated; two terms lose at most 2 bits of fp32's 23.
    np.testing.assert_array_less(np.abs(found - expected), size * 2.0 ** (-21 if split else -10))
    places = sorted(zip(step.flat, which.flat, state.flat, strict=True))
    assert places == [(t, w, s) for t in range(steps) for w in range(2) for s in range(N)]


@pytest.mark.parametrize("N", [8, 16, 32, 64])
def test_a_lane_holds_eight_states_of_a_channel(N: int) -> None:
    d, n = held(N)
    assert (d == d[0]).all()
    assert (n % 8 == np.arange(8)[:, None]).all()
    assert len(set(zip(d.flat, n.flat, strict=True))) == 256
    quads = n[0].reshape(8, 4) // 8
    assert (quads == quads[:, :1]).all(), "a quad's lanes hold other states of four channels"
