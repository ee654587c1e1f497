"""Selective scan, backward: what goes before the adjoint of a group of 8 steps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier, copy_async
from retrograd.core.kernels.rings import exponent

from .arrays import Group
from .channel_sum import own_layout
from .numerics import LOG2E, step_size, through_gate
from .steps import (
    fetch,
    forward_step,
    per_channel,
    rows4,
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
        k = number >> exponent(GROUPS)
        j = number & (GROUPS - 1)
        chunk = chunks - 1 - k
        time = chunk * SIZES.chunk + j * 8
        stage = number & (STAGES - 1)
        fetch(given.dy, time, length, raw.dy, stage, SIZES.channels, WIDE, COPY)
        fetch(given.x, time, length, raw.x, stage, SIZES.channels, WIDE, COPY)
        fetch(given.dt, time, length, raw.dt, stage, SIZES.channels, WIDE, COPY)
        fetch(given.z, time, length, raw.z, stage, SIZES.channels, WIDE, COPY)
        fetch(given.B, time, length, raw.B, stage, SIZES.N, 4, NV)
        fetch(given.C, time, length, raw.C, stage, SIZES.N, 4, NV)
        if j == 0:
            d = gl.arange(0, SIZES.channels, gl.SliceLayout(1, NV))[:, None]
            n = gl.arange(0, SIZES.N, gl.SliceLayout(0, NV))[None, :]
            copy_async(kept, states_ptr + chunk.to(gl.int64) * (channels * SIZES.N) + d * SIZES.N + n)
    async_copy.commit_group()


@gluon.jit
def prepare(stage, left, bias, raw, SIZES: gl.constexpr, DT_SOFTPLUS: gl.constexpr):
    """Convert loaded inputs for the other warps; delta is 0 after the `left` steps."""
    VEC: gl.constexpr = vector_layout(SIZES.channels, SIZES.warps)
    NV: gl.constexpr = tile_layout(SIZES.N, 4, SIZES.warps)
    gy = raw.dy.index(stage).load(VEC).to(gl.float32)
    within = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None] < left
    delta = step_size(raw.dt.index(stage).load(VEC), bias, within, DT_SOFTPLUS)
    gate = gy
    if raw.z is not None:
        gy, gate = through_gate(gy, raw.z.index(stage).load(VEC).to(gl.float32))
    b = raw.B.index(stage).load(NV).to(gl.float32)
    c = raw.C.index(stage).load(NV).to(gl.float32)
    x = raw.x.index(stage).load(VEC)
    return Group(delta, x, delta * x.to(gl.float32), gy, b, c, gate)


@gluon.jit
def put(values, stage, steps):
    """Store what `prepare` returns."""
    steps.delta.index(stage).store(values.delta)
    steps.x.index(stage).store(values.x)
    steps.dx.index(stage).store(values.dx)
    steps.gy.index(stage).store(values.gy)
    steps.B.index(stage).store(values.B)
    steps.C.index(stage).store(values.C)
    if steps.gate is not None:
        steps.gate.index(stage).store(values.gate)


@gluon.jit
def put_entering(entering, t: gl.constexpr, stage, h):
    """Keep the states that enter step t of a group, if there is room for them."""
    if t == 0:
        entering.at0.index(stage).store(h)
    elif t == 2:
        if entering.at2 is not None:
            entering.at2.index(stage).store(h)
    elif t == 4:
        if entering.at4 is not None:
            entering.at4.index(stage).store(h)
    elif entering.at6 is not None:
        entering.at6.index(stage).store(h)


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
            number i modulo their count of its barriers `empty`.
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    GROUPS: gl.constexpr = SIZES.chunk // 8
    RING: gl.constexpr = GROUPS + SIZES.extra
    OWN: gl.constexpr = own_layout(BLOCK_D, N, SIZES.warps)
    steps = groups.blocks.steps
    entering = groups.blocks.entering

    a2 = gl.load(A_ptr + state_offsets(BLOCK_D, N, OWN)) * LOG2E
    h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    bias = per_channel(dt_bias_ptr, d0, BLOCK_D, vector_layout(BLOCK_D, SIZES.warps))
    chunks = gl.cdiv(length, SIZES.chunk)
    count = chunks * GROUPS
    for number in range(2):
        fetch_group(number, chunks, length, channels, given, states_ptr, raw, kept, SIZES)
    async_copy.wait_group(1)
    block_barrier()
    if chunks > 0:
        left = length - (chunks - 1) * SIZES.chunk
        put(prepare(0, left, bias, raw, SIZES, DT_SOFTPLUS), 0, steps)
        h = kept.load(OWN)
    for number in range(count):
        async_copy.wait_group(0)
        block_barrier()
        fetch_group(number + 2, chunks, length, channels, given, states_ptr, raw, kept, SIZES)
        # In one piece, so that the compiler mixes them: the states of this group, and the steps of the next.
        k = (number + 1) >> exponent(GROUPS)
        j = (number + 1) & (GROUPS - 1)
        left = length - (chunks - 1 - k) * SIZES.chunk - j * 8
        values = prepare((number + 1) & (STAGES - 1), left, bias, raw, SIZES, DT_SOFTPLUS)
        stage = stage_of_group(number >> exponent(GROUPS), number & (GROUPS - 1), SIZES)
        group = Group(
            steps.delta.index(stage),
            steps.x.index(stage),
            steps.dx.index(stage),
            None,
            rows_of(steps.B, stage, N),
            None,
            None,
        )
        for half in gl.static_range(2):
            delta, dx = rows4(group.delta, 4 * half, OWN, SIZES), rows4(group.dx, 4 * half, OWN, SIZES)
            for i in gl.static_range(4):
                if i % 2 == 0:
                    put_entering(entering, 4 * half + i, stage, h)
                h, _ = forward_step(4 * half + i, h, a2, delta[i], dx[i], group, OWN)
        block_barrier()
        mbarrier.arrive(groups.full.index((number >> exponent(GROUPS)) & (groups.full.shape[0] - 1)), pred=j == 0)
        # The next group takes the stage of the one with this number; after the last group, nobody looks at it.
        before = number + 1 - RING
        if SIZES.extra > 1:
            # The first groups of a chunk take the stages of those of two chunks before.
            before = gl.where(j < SIZES.extra, (k - 1) * GROUPS - 1, before)
        mbarrier.wait(groups.empty.index(before % RING), before // RING & 1, pred=before >= 0)
        put(values, stage_of_group(k, j, SIZES), steps)
        if j == 0:
            h = kept.load(OWN)
