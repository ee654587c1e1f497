"""Selective scan, backward: what goes before the adjoint of a group of 8 steps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier, copy_async

from .arrays import Group
from .channel_sum import own_layout
from .numerics import LOG2E, step_size, through_gate
from .steps import (
    fetch,
    forward_step,
    per_channel,
    rows_of,
    stage_of_group,
    state_offsets,
    tile_layout,
    vector_layout,
)

STAGES = gl.constexpr(2)  # copies of a group: one in use, one under way


@gluon.jit
def fetch_group(number, chunks, length, channels, given, states_ptr, raw, kept, SIZES: gl.constexpr):
    """Begin to copy a group, the number-th that is made; with the first of a chunk, the state that enters it."""
    GROUPS: gl.constexpr = SIZES.chunk // 8
    WIDE: gl.constexpr = 128 // given.dy.pointer.dtype.element_ty.primitive_bitwidth  # elements in a copy of 16 bytes
    COPY: gl.constexpr = tile_layout(SIZES.channels, WIDE, SIZES.warps)
    NV: gl.constexpr = tile_layout(SIZES.N, 4, SIZES.warps)
    if number < chunks * GROUPS:
        k = number // GROUPS
        j = number % GROUPS
        chunk = chunks - 1 - k
        time = chunk * SIZES.chunk + j * 8
        stage = number % STAGES
        fetch(given.dy, time, length, raw.dy, stage, SIZES.channels, WIDE, COPY)
        fetch(given.x, time, length, raw.x, stage, SIZES.channels, WIDE, COPY)
        fetch(given.dt, time, length, raw.dt, stage, SIZES.channels, WIDE, COPY)
        fetch(given.z, time, length, raw.z, stage, SIZES.channels, WIDE, COPY)
        fetch(given.B, time, length, raw.B, stage, SIZES.N, 4, NV)
        fetch(given.C, time, length, raw.C, stage, SIZES.N, 4, NV)
        if j == 0:
            d = gl.arange(0, SIZES.channels, gl.SliceLayout(1, NV))[:, None]
            n = gl.arange(0, SIZES.N, gl.SliceLayout(0, NV))[None, :]
            copy_async(kept.index(k % 2), states_ptr + chunk.to(gl.int64) * (channels * SIZES.N) + d * SIZES.N + n)
    async_copy.commit_group()


@gluon.jit
def prepare(stage, left, bias_ptr, d0, raw, SIZES: gl.constexpr, DT_SOFTPLUS: gl.constexpr):
    """Convert loaded inputs for the other warps; delta is 0 after the `left` steps."""
    VEC: gl.constexpr = vector_layout(SIZES.channels, SIZES.warps)
    NV: gl.constexpr = tile_layout(SIZES.N, 4, SIZES.warps)
    gy = raw.dy.index(stage).load(VEC).to(gl.float32)
    bias = per_channel(bias_ptr, d0, SIZES.channels, VEC)
    within = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None] < left
    delta = step_size(raw.dt.index(stage).load(VEC), bias, within, DT_SOFTPLUS)
    gate = gy
    if raw.z is not None:
        gy, gate = through_gate(gy, raw.z.index(stage).load(VEC).to(gl.float32))
    b = raw.B.index(stage).load(NV).to(gl.float32)
    c = raw.C.index(stage).load(NV).to(gl.float32)
    return Group(delta, raw.x.index(stage).load(VEC), gy, b, c, gate)


@gluon.jit
def put(values, stage, steps):
    """Store what `prepare` returns."""
    steps.delta.index(stage).store(values.delta)
    steps.x.index(stage).store(values.x)
    steps.gy.index(stage).store(values.gy)
    steps.B.index(stage).store(values.B)
    steps.C.index(stage).store(values.C)
    if steps.gate is not None:
        steps.gate.index(stage).store(values.gate)


@gluon.jit
def make(
    given,
    A_ptr,
    dt_bias_ptr,
    d0,
    states_ptr,
    channels,
    length,
    raw,
    kept,
    groups,
    SIZES: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
):
    """Make the groups of every chunk, from the last chunk on: their steps, and the states that enter them.

    Args:
        given: the arrays in memory.
        A_ptr, states_ptr: those of the program's first channel and the sequence's first chunk.
        d0: the program's first channel.
        channels, length: all channels, and the length of the span.
        raw, kept: inputs as they come, and the state that enters a chunk, in shared memory.
        groups: the ring of groups. A chunk completes its barrier `full`; the i-th group that is finished completes
            number i modulo their count, GROUPS + 1, of its barriers `empty`.
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    GROUPS: gl.constexpr = SIZES.chunk // 8
    OWN: gl.constexpr = own_layout(BLOCK_D, N, SIZES.warps)
    steps = groups.blocks.steps
    entering = groups.blocks.entering

    a2 = gl.load(A_ptr + state_offsets(BLOCK_D, N, OWN)) * LOG2E
    h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    chunks = gl.cdiv(length, SIZES.chunk)
    count = chunks * GROUPS
    for number in range(2):
        fetch_group(number, chunks, length, channels, given, states_ptr, raw, kept, SIZES)
    async_copy.wait_group(1)
    block_barrier()
    if chunks > 0:
        left = length - (chunks - 1) * SIZES.chunk
        put(prepare(0, left, dt_bias_ptr, d0, raw, SIZES, DT_SOFTPLUS), 0, steps)
        h = kept.index(0).load(OWN)
    for number in range(count):
        async_copy.wait_group(0)
        block_barrier()
        fetch_group(number + 2, chunks, length, channels, given, states_ptr, raw, kept, SIZES)
        # In one piece, so that the compiler mixes them: the states of this group, and the steps of the next.
        k = (number + 1) // GROUPS
        j = (number + 1) % GROUPS
        left = length - (chunks - 1 - k) * SIZES.chunk - j * 8
        values = prepare((number + 1) % STAGES, left, dt_bias_ptr, d0, raw, SIZES, DT_SOFTPLUS)
        stage = stage_of_group(number // GROUPS, number % GROUPS, GROUPS)
        group = Group(
            rows_of(steps.delta, stage, BLOCK_D),
            rows_of(steps.x, stage, BLOCK_D),
            None,
            rows_of(steps.B, stage, N),
            None,
            None,
        )
        entering.first.index(stage).store(h)
        for t in gl.static_range(4):
            h, _ = forward_step(t, h, a2, group, OWN)
        if SIZES.middle:
            entering.middle.index(stage).store(h)
        for t in gl.static_range(4, 8):
            h, _ = forward_step(t, h, a2, group, OWN)
        block_barrier()
        mbarrier.arrive(groups.full.index(0), pred=j == 0)
        # The next group takes the stage of this one; after the last group, nobody looks at it.
        before = number - GROUPS
        mbarrier.wait(groups.empty.index(before % (GROUPS + 1)), before // (GROUPS + 1) & 1, pred=before >= 0)
        put(values, stage_of_group(k, j, GROUPS), steps)
        if j == 0:
            h = kept.index(k % 2).load(OWN)
