"""Selective scan: what enters every span of time, by a walk of the states alone, on NVIDIA GPUs.

Forward, it is the state; with BACK the gradient of the state that leaves a span, from the end. A program walks one
sequence for a block of channels, a few states a thread, so that there are threads for all schedulers. The
arithmetic of a state is that of forward.py and of walk_back.py to the bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from retrograd.core.kernels.gluon import block_barrier, ex2

from .arrays import Driven, Drives
from .numerics import LOG2E, next_state, step_size, through_gate
from .sequences import at_row, last_span, sequence
from .steps import apart, fetch, per_channel, state_offsets, tile_layout


@gluon.jit
def fetch_group(given, time, length, raw, stage, SIZES: gl.constexpr):
    """Begin to copy the group that starts at `time`, if there is one."""
    UNIT: gl.constexpr = 128 // given.drive.pointer.dtype.element_ty.primitive_bitwidth
    COPY: gl.constexpr = tile_layout(SIZES.channels, UNIT, SIZES.warps)
    end = gl.where(time < 0, time, length)
    fetch(given.drive, time, end, raw.drive, stage, SIZES.channels, UNIT, COPY)
    fetch(given.dt, time, end, raw.dt, stage, SIZES.channels, UNIT, COPY)
    fetch(given.z, time, end, raw.z, stage, SIZES.channels, UNIT, COPY)
    fetch(given.vector, time, end, raw.vector, stage, SIZES.N, 4, tile_layout(SIZES.N, 4, SIZES.warps))
    async_copy.commit_group()


@gluon.jit
def prepare(raw, stage, bias, time, length, SIZES: gl.constexpr, DT_SOFTPLUS: gl.constexpr, BACK: gl.constexpr):
    """A group as the walk takes it; delta is 0 after the sequence's end."""
    VEC: gl.constexpr = tile_layout(SIZES.channels, 1, SIZES.warps)
    within = time + gl.arange(0, SIZES.steps, gl.SliceLayout(1, VEC))[:, None] < length
    delta = step_size(raw.dt.index(stage).load(VEC), bias, within, DT_SOFTPLUS)
    drive = raw.drive.index(stage).load(VEC).to(gl.float32)
    if not BACK:
        drive = delta * drive
    elif raw.z is not None:
        drive, _ = through_gate(drive, raw.z.index(stage).load(VEC).to(gl.float32))
    return Driven(delta, drive, raw.vector.index(stage).load(tile_layout(SIZES.N, 2, SIZES.warps)).to(gl.float32))


@gluon.jit
def put(values, group):
    """Store what `prepare` returns."""
    put_fours(group.delta, values.delta)
    put_fours(group.drive, values.drive)
    put_fours(group.vector, values.vector)


@gluon.jit
def put_fours(memory, value):
    """Store (steps, columns) as (steps / 4, columns, 4): a thread reads 4 steps at once."""
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    steps = value.reshape([memory.shape[0], 4, memory.shape[1]]).permute([0, 2, 1])
    memory._reinterpret(gl.float32, memory.shape, CUBE).store(steps)


@gluon.jit
def four_steps(q, h, a2, group, FOUR: gl.constexpr, BACK: gl.constexpr):
    """The state after 4 steps, or the gradient of the state before them."""
    OWN: gl.constexpr = gl.SliceLayout(2, FOUR)
    delta = group.delta.index(q).load(gl.SliceLayout(1, FOUR))[:, None, :]
    drive = group.drive.index(q).load(gl.SliceLayout(1, FOUR))[:, None, :]
    vector = group.vector.index(q).load(gl.SliceLayout(0, FOUR))[None, :, :]
    decay = apart(ex2(delta * a2[:, :, None]), OWN)
    drive, vector = gl.broadcast(drive, vector)
    drive = apart(drive, OWN)
    vector = apart(vector, OWN)
    if BACK:
        for t in gl.static_range(3, -1, -1):
            h = gl.fma(drive[t], vector[t], h) * decay[t]
    else:
        for t in gl.static_range(4):
            h = next_state(decay[t], h, drive[t], vector[t])
    return h


@gluon.jit(do_not_specialize=["drive", "dt", "vector", "z", "lengths"])
def walk(
    drive,
    dt,
    A_ptr,
    vector,
    z,
    dt_bias_ptr,
    start_ptr,
    cu_seqlens_ptr,
    out_ptr,
    lengths,
    channels,
    SIZES: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
    BACK: gl.constexpr,
):
    """What enters all spans but the first, or with BACK leaves all but the last: out (sequences, spans - 1, D, N).

    Forward, drive is x, vector B, start the initial state; with BACK they are dy, C and the gradient of the final
    state.
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    STEPS: gl.constexpr = SIZES.steps
    STAGES: gl.constexpr = SIZES.stages
    LANES: gl.constexpr = N // SIZES.states
    FOUR: gl.constexpr = gl.BlockedLayout([1, 1, 4], [32 // LANES, LANES, 1], [SIZES.warps, 1, 1], [2, 1, 0])
    OWN: gl.constexpr = gl.SliceLayout(2, FOUR)
    VEC: gl.constexpr = tile_layout(BLOCK_D, 1, SIZES.warps)
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    UNIT: gl.constexpr = 128 // drive.pointer.dtype.element_ty.primitive_bitwidth

    pid_d = gl.program_id(0) % (channels.total // BLOCK_D)
    number = gl.program_id(0) // (channels.total // BLOCK_D)
    T = lengths.time
    row, length = sequence(number, T, cu_seqlens_ptr)
    d0 = pid_d * BLOCK_D
    drive = at_row(drive, number, row, T, cu_seqlens_ptr, d0, UNIT)
    dt = at_row(dt, number, row, T, cu_seqlens_ptr, d0, UNIT)
    first = d0 // channels.of_vector * vector.group * 4
    vector = at_row(vector, number, row, T, cu_seqlens_ptr, first, 4)
    drive_s = gl.allocate_shared_memory(drive.pointer.dtype.element_ty, [STAGES, STEPS, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt.pointer.dtype.element_ty, [STAGES, STEPS, BLOCK_D], ROWS)
    vector_s = gl.allocate_shared_memory(vector.pointer.dtype.element_ty, [STAGES, STEPS, N], ROWS)
    if z.pointer is not None:
        z = at_row(z, number, row, T, cu_seqlens_ptr, d0, UNIT)
        z_s = gl.allocate_shared_memory(z.pointer.dtype.element_ty, [STAGES, STEPS, BLOCK_D], ROWS)
    else:
        z_s: gl.constexpr = None  # type: ignore[no-redef]
    delta_f = gl.allocate_shared_memory(gl.float32, [STEPS // 4, BLOCK_D, 4], ROWS)
    drive_f = gl.allocate_shared_memory(gl.float32, [STEPS // 4, BLOCK_D, 4], ROWS)
    vector_f = gl.allocate_shared_memory(gl.float32, [STEPS // 4, N, 4], ROWS)
    given = Drives(drive, dt, z, vector)
    raw = Drives(drive_s, dt_s, z_s, vector_s)
    group = Driven(delta_f, drive_f, vector_f)

    bias = per_channel(dt_bias_ptr, d0, BLOCK_D, VEC)
    own = d0 * N + state_offsets(BLOCK_D, N, OWN)
    a2 = gl.load(A_ptr + own) * LOG2E
    h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if start_ptr is not None:
        h = gl.load(start_ptr + number.to(gl.int64) * (channels.total * N) + own).to(gl.float32)

    out_ptr += number.to(gl.int64) * (lengths.spans - 1) * (channels.total * N)

    # The walk goes as far as to the last span, or back to the second.
    each = lengths.span * (SIZES.chunk // STEPS)  # groups
    if BACK:
        time = (gl.cdiv(length, STEPS) - 1) * STEPS
        groups = gl.maximum(gl.cdiv(length, STEPS) - each, 0)
        way: gl.constexpr = -STEPS
    else:
        time = length * 0
        groups = last_span(length, lengths.span, SIZES.chunk) * each
        way: gl.constexpr = STEPS  # type: ignore[no-redef]
    for i in gl.static_range(STAGES - 1):
        fetch_group(given, time + i * way, length, raw, i, SIZES)
    async_copy.wait_group(STAGES - 2)
    block_barrier()
    put(prepare(raw, 0, bias, time, length, SIZES, DT_SOFTPLUS, BACK), group)
    for g in range(groups):
        async_copy.wait_group(STAGES - 3)
        block_barrier()
        values = prepare(raw, (g + 1) % STAGES, bias, time + way, length, SIZES, DT_SOFTPLUS, BACK)
        for i in gl.static_range(STEPS // 4):
            h = four_steps(STEPS // 4 - 1 - i if BACK else i, h, a2, group, FOUR, BACK)
        block_barrier()
        fetch_group(given, time + (STAGES - 1) * way, length, raw, (g + STAGES - 1) % STAGES, SIZES)
        put(values, group)
        span = time // STEPS // each - 1 if BACK else (g + 1) // each - 1
        if (time // STEPS if BACK else g + 1) % each == 0:
            gl.store(out_ptr + span.to(gl.int64) * (channels.total * N) + own, h)
        time += way
