"""Layouts, and what the three kinds of warps of a backward program share: groups of 8 steps in shared memory.

A chunk is GROUPS groups. `make` comes to the groups of a chunk from the first to the last, because states run that
way; `walk_back` and `finish` from the last to the first, and meanwhile `make` is at the chunk before. With EXTRA stages
beyond those of a chunk, its first EXTRA groups take these, and the next one the stage that the last group of the other
chunk leaves, and so on: stages are filled upwards by one chunk and downwards by the next. One extra stage is enough;
with two `walk_back` waits less for the chunk's last group.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import copy_async, ex2

from .numerics import next_state


@gluon.constexpr_function
def tile_layout(columns, wide, warps):
    """(rows, columns), `wide` elements of a row a thread."""
    return gl.BlockedLayout([1, wide], [32 * wide // columns, columns // wide], [warps, 1], [1, 0])


@gluon.constexpr_function
def vector_layout(channels, warps):
    """(8, channels) over all threads."""
    return tile_layout(channels, max(1, channels // (4 * warps)), warps)


@gluon.jit
def state_offsets(BLOCK_D: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr):
    """Where a program's states (BLOCK_D, N) lie from its first on."""
    d = gl.arange(0, BLOCK_D, gl.SliceLayout(1, LAYOUT))[:, None]
    return d * N + gl.arange(0, N, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def per_channel(ptr, d0, BLOCK_D: gl.constexpr, LAYOUT: gl.constexpr):
    """A parameter (D,) as (1, BLOCK_D) in fp32, from channel d0 on; zeros where it is absent."""
    values = gl.zeros([1, BLOCK_D], gl.float32, LAYOUT)
    if ptr is not None:
        values = gl.load(ptr + d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, LAYOUT))[None, :]).to(gl.float32)
    return values


@gluon.jit
def fetch(array, time, length, tiles, stage, COLUMNS: gl.constexpr, UNIT: gl.constexpr, COPY: gl.constexpr):
    """Begin to copy the steps from `time` on, a tile (steps, COLUMNS), to shared memory; those past the end are zeros.

    The array's stride is in UNIT elements; a sequence has less than 2**31 times as many, so that 32 bits hold the way.
    """
    if array.pointer is not None:
        t = time + gl.arange(0, tiles.shape[1], gl.SliceLayout(1, COPY))[:, None]
        columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, COPY))[None, :]
        copy_async(tiles.index(stage), array.pointer + columns + (t * array.time).to(gl.int64) * UNIT, mask=t < length)


@gluon.jit
def stage_of_group(k, j, SIZES: gl.constexpr):
    """Where group j of the k-th chunk from the end lies."""
    return gl.where(k & 1 == 0, j, SIZES.chunk // 8 + SIZES.extra - 1 - j)


@gluon.jit
def rows_of(memory, stage, COLUMNS: gl.constexpr):
    """The 8 steps (8, COLUMNS) of a stage; `.index` of it gives a step."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return memory.index(stage)._reinterpret(memory.dtype, [8, COLUMNS], FLAT)


@gluon.constexpr_function
def four_layout(layout, channels, N):
    """(4, channels, N): four steps of the states of `layout`, all in the thread."""
    bases = ([[0, *base] for base in kind] for kind in (layout.reg_bases, layout.lane_bases, layout.warp_bases))
    reg, lane, warp = bases
    return gl.DistributedLinearLayout([[1, 0, 0], [2, 0, 0], *reg], lane, warp, [], [4, channels, N])


@gluon.constexpr_function
def in_pairs(shape):
    """A shape whose last axis, of 4, is two of 2."""
    return [*shape[:-1], 2, 2]


@gluon.jit
def apart(x, LAYOUT: gl.constexpr):
    """The four tiles along the last axis, of 4."""
    even, odd = gl.split(x.reshape(in_pairs(x.shape)))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def rows4(memory, t: gl.constexpr, OWN: gl.constexpr, SIZES: gl.constexpr):
    """Rows t to t + 3 of (8, channels), as every state's thread needs them: 4 steps by one instruction."""
    LOAD: gl.constexpr = gl.SliceLayout(2, four_layout(OWN, SIZES.channels, SIZES.N))
    return apart(memory.slice(t, 4).load(LOAD).permute([1, 0]), gl.SliceLayout(1, OWN))


@gluon.jit
def forward_step(t, h, a2, delta, dx, group, OWN: gl.constexpr):
    """A step of the recurrence: the new states, and the decay."""
    b = group.B.index(t).load(gl.SliceLayout(0, OWN))
    decay = ex2(delta[:, None] * a2)
    return next_state(decay, h, dx[:, None], b[None, :]), decay
