"""Selective scan, backward: what goes before the adjoint of a group of 8 steps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier, copy_async

from .channel_sum import own_layout
from .numerics import LOG2E, step_size, through_gate
from .steps import (
    fetch,
    forward_step,
    per_channel,
    place_of,
    rows_of,
    state_offsets,
    tile_layout,
    vector_layout,
)

STAGES = gl.constexpr(2)  # copies of a group: one in use, one under way


@gluon.jit
def fetch_group(number, chunks, length, channels, arrays, states_ptr, raw, kept_s, N: gl.constexpr,
                BLOCK_D: gl.constexpr, KEEP: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """Begin to copy a group, the number-th that is made; with the first of a chunk, the state that enters it."""
    GROUPS: gl.constexpr = KEEP // 8
    WIDE: gl.constexpr = 128 // arrays[0][0].dtype.element_ty.primitive_bitwidth  # elements in the 16 bytes of a copy
    COPY: gl.constexpr = tile_layout(BLOCK_D, WIDE, WARPS)
    NV: gl.constexpr = tile_layout(N, 4, WARPS)
    if number < chunks * GROUPS:
        k = number // GROUPS
        j = number % GROUPS
        chunk = chunks - 1 - k
        time = chunk * KEEP + j * 8
        stage = number % STAGES
        for i in gl.static_range(4):
            fetch(arrays[i], time, length, raw[i], stage, BLOCK_D, WIDE, COPY)
        for i in gl.static_range(4, 6):
            fetch(arrays[i], time, length, raw[i], stage, N, 4, NV)
        if j == 0:
            d = gl.arange(0, BLOCK_D, gl.SliceLayout(1, NV))[:, None]
            n = gl.arange(0, N, gl.SliceLayout(0, NV))[None, :]
            copy_async(kept_s.index(k % 2), states_ptr + chunk.to(gl.int64) * (channels * N) + d * N + n)
    async_copy.commit_group()


@gluon.jit
def prepare(stage, left, bias_ptr, d0, raw, N: gl.constexpr, BLOCK_D: gl.constexpr, DT_SOFTPLUS: gl.constexpr,
            WARPS: gl.constexpr):  # fmt: skip
    """What came, as the other warps want it: delta, 0 past the `left` steps, x, g_y = dy silu(z), B, C, dy silu'(z)."""
    VEC: gl.constexpr = vector_layout(BLOCK_D, WARPS)
    NV: gl.constexpr = tile_layout(N, 4, WARPS)
    dy_s, x_s, dt_s, z_s, B_s, C_s = raw
    gy = dy_s.index(stage).load(VEC).to(gl.float32)
    bias = per_channel(bias_ptr, d0, BLOCK_D, VEC)
    within = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None] < left
    delta = step_size(dt_s.index(stage).load(VEC), bias, within, DT_SOFTPLUS)
    gate = gy
    if z_s is not None:
        gy, gate = through_gate(gy, z_s.index(stage).load(VEC).to(gl.float32))
    b = B_s.index(stage).load(NV).to(gl.float32)
    c = C_s.index(stage).load(NV).to(gl.float32)
    return delta, x_s.index(stage).load(VEC), gy, b, c, gate


@gluon.jit
def put(values, place, rows, gate_f):
    """Store what `prepare` returns."""
    for i in gl.static_range(5):
        rows[i].index(place).store(values[i])
    if gate_f is not None:
        gate_f.index(place).store(values[5])


@gluon.jit
def make(
    dy,
    x,
    dt,
    z,
    B,
    C,
    A_ptr,
    dt_bias_ptr,
    d0,
    states_ptr,
    channels,
    length,
    raw,
    kept_s,
    gate_f,
    rows,
    entering,
    full,
    empty,
    N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    KEEP: gl.constexpr,
    MIDDLE: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """Make the groups of every chunk, from the last chunk on: their rows, and the states that enter them.

    Args:
        dy, x, dt, z, B, C: arrays as `fetch` takes them.
        A_ptr, states_ptr: those of the program's first channel and the sequence's first chunk.
        d0: the program's first channel.
        raw, kept_s: arrays as they come, and the state that enters a chunk, in shared memory like all that follows.
        gate_f: dy silu'(z) of every place, where z has a gradient.
        rows, entering: as `walk_back` takes them.
        full: a chunk completes it.
        empty: barriers; the i-th group that is finished completes number i modulo their count, GROUPS + 1.
    """
    GROUPS: gl.constexpr = KEEP // 8
    OWN: gl.constexpr = own_layout(BLOCK_D, N, WARPS)
    entry_f, middle_f = entering

    a2 = gl.load(A_ptr + state_offsets(BLOCK_D, N, OWN)) * LOG2E
    h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    chunks = gl.cdiv(length, KEEP)
    groups = chunks * GROUPS
    arrays = (dy, x, dt, z, B, C)
    for number in range(2):
        fetch_group(number, chunks, length, channels, arrays, states_ptr, raw, kept_s, N, BLOCK_D, KEEP, WARPS)
    async_copy.wait_group(1)
    block_barrier()
    if chunks > 0:
        left = length - (chunks - 1) * KEEP
        put(prepare(0, left, dt_bias_ptr, d0, raw, N, BLOCK_D, DT_SOFTPLUS, WARPS), 0, rows, gate_f)
        h = kept_s.index(0).load(OWN)
    for number in range(groups):
        async_copy.wait_group(0)
        block_barrier()
        fetch_group(number + 2, chunks, length, channels, arrays, states_ptr, raw, kept_s, N, BLOCK_D, KEEP, WARPS)
        # In one piece, so that the compiler mixes them: the states of this group, and the rows of the next.
        k = (number + 1) // GROUPS
        j = (number + 1) % GROUPS
        left = length - (chunks - 1 - k) * KEEP - j * 8
        values = prepare((number + 1) % STAGES, left, dt_bias_ptr, d0, raw, N, BLOCK_D, DT_SOFTPLUS, WARPS)
        place = place_of(number // GROUPS, number % GROUPS, GROUPS)
        delta_j = rows_of(rows[0], place, BLOCK_D)
        x_j = rows_of(rows[1], place, BLOCK_D)
        B_j = rows_of(rows[3], place, N)
        entry_f.index(place).store(h)
        for t in gl.static_range(4):
            h, _ = forward_step(t, h, a2, delta_j, x_j, B_j, OWN)
        if MIDDLE:
            middle_f.index(place).store(h)
        for t in gl.static_range(4, 8):
            h, _ = forward_step(t, h, a2, delta_j, x_j, B_j, OWN)
        block_barrier()
        mbarrier.arrive(full, count=1, pred=j == 0)
        before = number - GROUPS  # whose place the next group takes; behind the last group, nobody looks at it
        mbarrier.wait(empty.index(before % (GROUPS + 1)), before // (GROUPS + 1) & 1, pred=before >= 0)
        put(values, place_of(k, j, GROUPS), rows, gate_f)
        if j == 0:
            h = kept_s.index(k % 2).load(OWN)
