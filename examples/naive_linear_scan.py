"""The linear scan h_t = a_t * h_{t-1} + b_t in Triton four times, from naive to fast.

docs/annotated/from_naive.md explains what each step buys. a, b, h (B, T, D) are contiguous float32, each channel is by
itself, and h starts from 0. The backward pass is the same scan in the other direction. On a CPU: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# 1. A program has some channels, and goes through time with their state in registers.


@triton.jit
def walk_steps(a, b, h, T, D, CHANNELS: tl.constexpr):
    """One step after the other."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < D
    place = tl.program_id(1).to(tl.int64) * T * D + channel
    state = tl.zeros((CHANNELS,), tl.float32)
    for _ in range(T):
        state = tl.load(a + place, inside, 0.0) * state + tl.load(b + place, inside, 0.0)
        tl.store(h + place, state, inside)
        place += D


def by_step(a: Tensor, b: Tensor) -> Tensor:
    """12 bytes a state, but each step waits for its load."""
    (B, T, D), h = b.shape, torch.empty_like(b)
    walk_steps[(triton.cdiv(D, 32), B)](a, b, h, T, D, CHANNELS=32, num_warps=1)
    return h


# 2. A tile of steps is loaded at once, and scanned as a tree.


@triton.jit
def combine(a1, b1, a2, b2):
    """A pair stands for the map h -> a h + b: the map that does the earlier one, then the later."""
    return a2 * a1, a2 * b1 + b2


@triton.jit
def scan_tile(a, b, first, batch, block, T, D, TIME: tl.constexpr, CHANNELS: tl.constexpr):
    """The maps from before a tile to after each of its steps; their places, and whether those exist."""
    step = first + tl.arange(0, TIME)[:, None]
    channel = block * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    inside = (step < T) & (channel < D)
    place = (batch.to(tl.int64) * T + step) * D + channel
    # After the last step comes the map h -> 1 h + 0, which changes nothing.
    decay, value = tl.load(a + place, inside, 1.0), tl.load(b + place, inside, 0.0)
    decay, value = tl.associative_scan((decay, value), 0, combine)
    return decay, value, place, inside


@triton.jit
def last_of(tile, TIME: tl.constexpr):
    """The last row of a tile; a sum of it and zeros is exact."""
    return tl.sum(tl.where(tl.arange(0, TIME)[:, None] == TIME - 1, tile, 0.0), 0)


@triton.jit
def walk_tiles(a, b, h, T, D, TIME: tl.constexpr, CHANNELS: tl.constexpr):
    """One tile after the other."""
    state = tl.zeros((CHANNELS,), tl.float32)
    for first in range(0, T, TIME):
        decay, value, place, inside = scan_tile(
            a, b, first, tl.program_id(1), tl.program_id(0), T, D, TIME, CHANNELS
        )  # fmt: skip
        states = decay * state[None, :] + value
        tl.store(h + place, states, inside)
        state = last_of(states, TIME)


def by_tile(a: Tensor, b: Tensor) -> Tensor:
    """12 bytes a state, and as many loads in flight as a tile has; but time is still walked by one program."""
    (B, T, D), h = b.shape, torch.empty_like(b)
    walk_tiles[(triton.cdiv(D, 32), B)](a, b, h, T, D, TIME=64, CHANNELS=32)
    return h


# 3. All tiles at once: each as one map, then the states between them, then each from its state.


@triton.jit
def reduce_tiles(a, b, P, l, T, D, TIME: tl.constexpr, CHANNELS: tl.constexpr):  # noqa: E741
    """The map of each tile, P and l (B, tiles, D)."""
    block, tile, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    decay, value, _, _ = scan_tile(a, b, tile * TIME, batch, block, T, D, TIME, CHANNELS)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    place = (batch.to(tl.int64) * tl.num_programs(1) + tile) * D + channel
    tl.store(P + place, last_of(decay, TIME), channel < D)
    tl.store(l + place, last_of(value, TIME), channel < D)


@triton.jit
def scan_from(a, b, states, h, T, D, TIME: tl.constexpr, CHANNELS: tl.constexpr):
    """h of each tile, from the state after the tile before."""
    block, tile, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    decay, value, place, inside = scan_tile(a, b, tile * TIME, batch, block, T, D, TIME, CHANNELS)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    before = states + (batch.to(tl.int64) * tl.num_programs(1) + tile - 1) * D + channel
    state = tl.load(before, (channel < D) & (tile > 0), 0.0)
    tl.store(h + place, decay * state[None, :] + value, inside)


def in_three_launches(a: Tensor, b: Tensor) -> Tensor:
    """20 bytes a state, since a and b are read twice; but all of the GPU is at work."""
    (B, T, D), h = b.shape, torch.empty_like(b)
    grid = triton.cdiv(D, 32), triton.cdiv(T, 64), B
    P, l, states = (b.new_empty(B, grid[1], D) for _ in range(3))  # noqa: E741
    reduce_tiles[grid](a, b, P, l, T, D, TIME=64, CHANNELS=32)
    walk_steps[grid[0], B](P, l, states, grid[1], D, CHANNELS=32, num_warps=1)
    scan_from[grid](a, b, states, h, T, D, TIME=64, CHANNELS=32)
    return h


# 4. One launch: a tile hands its last state to the next, which has loaded its own steps meanwhile.


@triton.jit
def hand_over(a, b, h, states, ready, T, D, chains, TIME: tl.constexpr, CHANNELS: tl.constexpr):
    """h of each tile, and the state after it. Programs start in the order of their numbers, which is that of tiles."""
    tile, chain = tl.program_id(0) // chains, tl.program_id(0) % chains
    blocks = tl.cdiv(D, CHANNELS)
    decay, value, place, inside = scan_tile(
        a, b, tile * TIME, chain // blocks, chain % blocks, T, D, TIME, CHANNELS
    )  # fmt: skip
    column = tl.arange(0, CHANNELS)
    P, l = last_of(decay, TIME), last_of(value, TIME)  # noqa: E741
    state = tl.zeros((CHANNELS,), tl.float32)
    if tile > 0:
        before = tl.program_id(0) - chains
        while tl.atomic_cas(ready + before, 1, 1) == 0:
            pass
        state = tl.load(states + before.to(tl.int64) * CHANNELS + column, cache_modifier=".cg")
    tl.store(states + tl.program_id(0).to(tl.int64) * CHANNELS + column, P * state + l)
    tl.debug_barrier()  # all threads have written before one says so
    tl.atomic_xchg(ready + tl.program_id(0), 1)
    tl.store(h + place, decay * state[None, :] + value, inside)


def in_one_launch(a: Tensor, b: Tensor) -> Tensor:
    """12 bytes a state, and all of the GPU is at work; one number goes from tile to tile."""
    (B, T, D), h = b.shape, torch.empty_like(b)
    chains, tiles = triton.cdiv(D, 32) * B, triton.cdiv(T, 64)
    states = b.new_empty(chains * tiles, 32)
    ready = torch.zeros(chains * tiles, dtype=torch.int32, device=b.device)
    hand_over[(chains * tiles,)](a, b, h, states, ready, T, D, chains, TIME=64, CHANNELS=32)
    return h


STEPS = {
    "1. a step at a time": by_step,
    "2. a tile at a time": by_tile,
    "3. all tiles, three launches": in_three_launches,
    "4. all tiles, one launch": in_one_launch,
}
