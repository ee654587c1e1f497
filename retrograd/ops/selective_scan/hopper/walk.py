"""Selective scan: what enters every span of time, by a walk of the states alone, on NVIDIA GPUs.

Forward, it is the state; with BACK the gradient of the state that leaves a span, from the end. A program walks one
sequence for BLOCK_D channels, STATES states a thread, which are few, so that there are threads for all schedulers. The
arithmetic of a state is that of forward.py and of walk_back.py to the bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .numerics import LOG2E, next_state, step_size, through_gate
from .sequences import at_row, last_span, sequence
from .steps import fetch, per_channel, state_offsets, tile_layout


@gluon.jit
def fetch_group(time, length, stage, arrays, raw, N: gl.constexpr, BLOCK_D: gl.constexpr, WARPS: gl.constexpr):
    """Begin to copy the group that starts at `time`, if there is one."""
    UNIT: gl.constexpr = 128 // arrays[0][0].dtype.element_ty.primitive_bitwidth
    COPY: gl.constexpr = tile_layout(BLOCK_D, UNIT, WARPS)
    end = gl.where(time < 0, time, length)
    for i in gl.static_range(3):
        fetch(arrays[i], time, end, raw[i], stage, BLOCK_D, UNIT, COPY)
    fetch(arrays[3], time, end, raw[3], stage, N, 4, tile_layout(N, 4, WARPS))
    async_copy.commit_group()


@gluon.jit
def prepare(time, length, stage, raw, bias, BLOCK_D: gl.constexpr, N: gl.constexpr, STEPS: gl.constexpr,
            DT_SOFTPLUS: gl.constexpr, BACK: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """Delta, what drives the states, which is delta x or g_y, and through which vector: B or C."""
    VEC: gl.constexpr = tile_layout(BLOCK_D, 1, WARPS)
    within = time + gl.arange(0, STEPS, gl.SliceLayout(1, VEC))[:, None] < length
    delta = step_size(raw[1].index(stage).load(VEC), bias, within, DT_SOFTPLUS)
    drive = raw[0].index(stage).load(VEC).to(gl.float32)
    if not BACK:
        drive = delta * drive
    elif raw[2] is not None:
        drive, _ = through_gate(drive, raw[2].index(stage).load(VEC).to(gl.float32))
    return delta, drive, raw[3].index(stage).load(tile_layout(N, 2, WARPS)).to(gl.float32)


@gluon.jit
def put(values, rows):
    """Store what `prepare` returns, (steps, columns), as (steps / 4, columns, 4): a thread reads 4 steps at once."""
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    for i in gl.static_range(3):
        steps = values[i].reshape([rows[i].shape[0], 4, rows[i].shape[1]]).permute([0, 2, 1])
        rows[i]._reinterpret(gl.float32, rows[i].shape, CUBE).store(steps)


@gluon.jit
def apart(x, LAYOUT: gl.constexpr):
    """The four tiles (D, N) of (D, N, 4)."""
    even, odd = gl.split(x.reshape([x.shape[0], x.shape[1], 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def four_steps(q, h, a2, rows, FOUR: gl.constexpr, BACK: gl.constexpr):
    """The state after 4 steps, or the gradient of the state before them."""
    OWN: gl.constexpr = gl.SliceLayout(2, FOUR)
    delta = rows[0].index(q).load(gl.SliceLayout(1, FOUR))[:, None, :]
    drive = rows[1].index(q).load(gl.SliceLayout(1, FOUR))[:, None, :]
    vector = rows[2].index(q).load(gl.SliceLayout(0, FOUR))[None, :, :]
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


@gluon.jit(do_not_specialize=["T", "span", "spans", "drive_strides", "dt_strides", "z_strides", "vector_strides"])
def walk(
    drive_ptr,
    dt_ptr,
    A_ptr,
    vector_ptr,
    z_ptr,
    dt_bias_ptr,
    start_ptr,
    cu_seqlens_ptr,
    out_ptr,
    T,
    span,
    spans,
    channels,
    channels_a_vector,
    drive_strides,
    dt_strides,
    z_strides,
    vector_strides,
    N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    STATES: gl.constexpr,
    KEEP: gl.constexpr,
    STEPS: gl.constexpr,
    STAGES: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
    BACK: gl.constexpr,
    WARPS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """What enters all spans but the first, or with BACK leaves all but the last: out (sequences, spans - 1, D, N).

    Forward, drive is x, vector B, start the initial state; with BACK they are dy, C and the gradient of the final
    state. Strides and spans are as in the forward pass.
    """
    FOUR: gl.constexpr = gl.BlockedLayout([1, 1, 4], [32 * STATES // N, N // STATES, 1], [WARPS, 1, 1], [2, 1, 0])
    OWN: gl.constexpr = gl.SliceLayout(2, FOUR)
    VEC: gl.constexpr = tile_layout(BLOCK_D, 1, WARPS)
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    UNIT: gl.constexpr = 128 // drive_ptr.dtype.element_ty.primitive_bitwidth

    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    pid_d = gl.program_id(0) % (channels // BLOCK_D)
    pid_b = gl.program_id(0) // (channels // BLOCK_D)
    row, length = sequence(pid_b, T, cu_seqlens_ptr)
    d0 = pid_d * BLOCK_D
    drive = at_row(drive_ptr, drive_strides, pid_b, row, T, cu_seqlens_ptr, d0, UNIT)
    dt = at_row(dt_ptr, dt_strides, pid_b, row, T, cu_seqlens_ptr, d0, UNIT)
    z = (z_ptr, z_strides[1])
    group = d0 // channels_a_vector * vector_strides[2] * 4
    vector = at_row(vector_ptr, vector_strides, pid_b, row, T, cu_seqlens_ptr, group, 4)
    drive_s = gl.allocate_shared_memory(drive_ptr.dtype.element_ty, [STAGES, STEPS, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt_ptr.dtype.element_ty, [STAGES, STEPS, BLOCK_D], ROWS)
    vector_s = gl.allocate_shared_memory(vector_ptr.dtype.element_ty, [STAGES, STEPS, N], ROWS)
    if z_ptr is not None:
        z = at_row(z_ptr, z_strides, pid_b, row, T, cu_seqlens_ptr, d0, UNIT)
        z_s = gl.allocate_shared_memory(z_ptr.dtype.element_ty, [STAGES, STEPS, BLOCK_D], ROWS)
    else:
        z_s: gl.constexpr = None  # type: ignore[no-redef]
    delta_f = gl.allocate_shared_memory(gl.float32, [STEPS // 4, BLOCK_D, 4], ROWS)
    drive_f = gl.allocate_shared_memory(gl.float32, [STEPS // 4, BLOCK_D, 4], ROWS)
    vector_f = gl.allocate_shared_memory(gl.float32, [STEPS // 4, N, 4], ROWS)
    arrays = (drive, dt, z, vector)
    raw = (drive_s, dt_s, z_s, vector_s)
    rows = (delta_f, drive_f, vector_f)

    bias = per_channel(dt_bias_ptr, d0, BLOCK_D, VEC)
    own = d0 * N + state_offsets(BLOCK_D, N, OWN)
    a2 = gl.load(A_ptr + own) * LOG2E
    h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if start_ptr is not None:
        h = gl.load(start_ptr + pid_b.to(gl.int64) * (channels * N) + own).to(gl.float32)

    out_ptr += pid_b.to(gl.int64) * (spans - 1) * (channels * N)

    # The walk goes as far as to the last span, or back to the second.
    each = span * (KEEP // STEPS)  # groups
    if BACK:
        time = (gl.cdiv(length, STEPS) - 1) * STEPS
        groups = gl.maximum(gl.cdiv(length, STEPS) - each, 0)
        way: gl.constexpr = -STEPS
    else:
        time = length * 0
        groups = last_span(length, span, KEEP) * each
        way: gl.constexpr = STEPS  # type: ignore[no-redef]
    for i in gl.static_range(STAGES - 1):
        fetch_group(time + i * way, length, i, arrays, raw, N, BLOCK_D, WARPS)
    async_copy.wait_group(STAGES - 2)
    block_barrier()
    put(prepare(time, length, 0, raw, bias, BLOCK_D, N, STEPS, DT_SOFTPLUS, BACK, WARPS), rows)
    for g in range(groups):
        async_copy.wait_group(STAGES - 3)
        block_barrier()
        values = prepare(time + way, length, (g + 1) % STAGES, raw, bias, BLOCK_D, N, STEPS, DT_SOFTPLUS, BACK, WARPS)
        for i in gl.static_range(STEPS // 4):
            h = four_steps(STEPS // 4 - 1 - i if BACK else i, h, a2, rows, FOUR, BACK)
        block_barrier()
        fetch_group(time + (STAGES - 1) * way, length, (g + STAGES - 1) % STAGES, arrays, raw, N, BLOCK_D, WARPS)
        put(values, rows)
        number = time // STEPS // each - 1 if BACK else (g + 1) // each - 1
        if (time // STEPS if BACK else g + 1) % each == 0:
            gl.store(out_ptr + number.to(gl.int64) * (channels * N) + own, h)
        time += way
