"""Selective scan, forward, on NVIDIA GPUs. Symbols and formulas: README.md of the room.

One program walks one sequence for BLOCK_D channels, N states a channel in registers, STATES of them a thread. Its loop
works on three groups of 8 steps at once, in one basic block, so that the compiler mixes work that does not depend on
each other:
    prepare  group g + 1: delta, delta x, B and C to fp32
    scan     group g:     h = 2^(delta A log2 e) h + delta x B;  y = sum over n of C h
    finish   group g - 1: out = (y + D x) silu(z)
All stores to shared memory stand at the end of the loop, so two barriers an iteration are enough.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from retrograd.core.gluon import block_barrier, copy_async

from .numerics import LOG2E, ex2, sigmoid, softplus, stack8
from .steps import tile_layout


@gluon.jit
def sequence(pid, T, cu_seqlens_ptr, KEEP: gl.constexpr):
    """First row, length and first kept state of a sequence; of a packed one, clamped to rows that exist."""
    if cu_seqlens_ptr is None:
        return pid.to(gl.int64) * T, T, pid.to(gl.int64) * gl.cdiv(T, KEEP)
    else:
        start = gl.minimum(gl.maximum(gl.load(cu_seqlens_ptr + pid), 0), T)
        stop = gl.minimum(gl.maximum(gl.load(cu_seqlens_ptr + pid + 1), start), T)
        return start.to(gl.int64), stop - start, (start // KEEP + pid).to(gl.int64)


@gluon.jit
def fetch(g, slot, length, ptr, stride, tiles, columns, ROWS: gl.constexpr):
    """Begin to copy 8 steps of group g, a tile (8, columns), to shared memory; steps past the end come as zeros."""
    if ptr is not None:
        rows = gl.arange(0, 8, gl.SliceLayout(1, ROWS))[:, None]
        start = ptr + (g * 8).to(gl.int64) * stride
        copy_async(tiles.index(slot), start + (rows * stride + columns), mask=rows < length - g * 8)


@gluon.jit
def fill_outside(ptr, number, sequences, start, stop, T, columns, offsets):
    """The first of packed sequences writes zeros before its start, the last behind its end."""
    if ptr is not None:
        zeros = gl.zeros_like(offsets).to(ptr.dtype.element_ty)
        for t in range(gl.where(number == 0, start, 0)):
            gl.store(ptr + t.to(gl.int64) * columns + offsets, zeros)
        for t in range(gl.where(number == sequences - 1, stop, T), T):
            gl.store(ptr + t.to(gl.int64) * columns + offsets, zeros)


@gluon.jit
def step_size(dt, bias, mask, SOFTPLUS: gl.constexpr):
    """Delta in fp32; 0 where the mask is false, which leaves the state as it is."""
    delta = dt.to(gl.float32) + bias
    if SOFTPLUS:
        delta = softplus(delta)
    return gl.where(mask, delta, 0.0)


@gluon.jit
def gated(y, x_s, z_s, slot, skip, GATE: gl.constexpr, VEC: gl.constexpr):
    """(y + D x) silu(z)"""
    out = y + skip * x_s.index(slot).load(VEC).to(gl.float32)
    if GATE:
        z = z_s.index(slot).load(VEC).to(gl.float32)
        out = out * (z * sigmoid(z))
    return out


@gluon.jit
def scan_step(t: gl.constexpr, h, a2, delta_f, dx_f, B_f, C_f, OWN: gl.constexpr):
    """One step of the recurrence: the new states, and y."""
    delta = delta_f.index(t).load(gl.SliceLayout(1, OWN))
    dx = dx_f.index(t).load(gl.SliceLayout(1, OWN))
    b = B_f.index(t).load(gl.SliceLayout(0, OWN))
    c = C_f.index(t).load(gl.SliceLayout(0, OWN))
    h = ex2(delta[:, None] * a2) * h + dx[:, None] * b[None, :]
    return h, gl.sum(h * c[None, :], 1)


@gluon.jit(do_not_specialize=["T", "sequences", "x_strides", "dt_strides", "z_strides", "B_strides", "C_strides"])
def forward_scan(
    x_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    D_ptr,
    z_ptr,
    dt_bias_ptr,
    initial_state_ptr,
    cu_seqlens_ptr,
    y_ptr,
    final_state_ptr,
    states_ptr,
    T,
    sequences,
    channels,
    channels_a_B,
    channels_a_C,
    x_strides,
    dt_strides,
    z_strides,
    B_strides,
    C_strides,
    N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    STATES: gl.constexpr,
    KEEP: gl.constexpr,
    STAGES: gl.constexpr,
    SOFTPLUS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """y (B, T, D), final_state (B, D, N), and states: what enters every KEEP-th step, (slots, D, N).

    Strides are (batch, time) of x, dt and z in units of 16 bytes, and (batch, time, group) of B and C in units of 4
    elements: so the compiler knows what they are multiples of, whatever they are. Channels and states are dense.
    """
    LANES: gl.constexpr = N // STATES
    WIDE: gl.constexpr = 8 * BLOCK_D // (32 * WARPS)  # channels a thread prepares
    OWN: gl.constexpr = gl.BlockedLayout([1, STATES], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    VEC: gl.constexpr = tile_layout(BLOCK_D, WIDE, WARPS)
    # A copy is of 4 bytes at least, so with 64 states of 16-bit rows half of the threads copy nothing.
    PIECE: gl.constexpr = max(WIDE, 32 // x_ptr.dtype.element_ty.primitive_bitwidth)
    COPY: gl.constexpr = tile_layout(BLOCK_D, PIECE, WARPS)
    NV: gl.constexpr = tile_layout(N, 4, WARPS)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    blocks = channels // BLOCK_D
    pid_d = gl.program_id(0) % blocks
    pid_b = gl.program_id(0) // blocks
    row, length, slot = sequence(pid_b, T, cu_seqlens_ptr, KEEP)
    d0 = pid_d * BLOCK_D
    batch = (pid_b if cu_seqlens_ptr is None else pid_b * 0).to(gl.int64)
    first = row - batch * T  # time within its batch
    UNIT: gl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    x_ptr += (batch * x_strides[0] + first * x_strides[1]) * UNIT + d0
    dt_ptr += (batch * dt_strides[0] + first * dt_strides[1]) * UNIT + d0
    B_ptr += (batch * B_strides[0] + first * B_strides[1] + d0 // channels_a_B * B_strides[2]) * 4
    C_ptr += (batch * C_strides[0] + first * C_strides[1] + d0 // channels_a_C * C_strides[2]) * 4
    y_ptr += row * channels + d0

    x_s = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    B_s = gl.allocate_shared_memory(B_ptr.dtype.element_ty, [STAGES, 8, N], ROWS)
    C_s = gl.allocate_shared_memory(C_ptr.dtype.element_ty, [STAGES, 8, N], ROWS)
    if z_ptr is not None:
        z_ptr += (batch * z_strides[0] + first * z_strides[1]) * UNIT + d0
        z_s = gl.allocate_shared_memory(z_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    else:
        z_s = x_s
    delta_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], FLAT)
    dx_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], FLAT)
    y_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], ROWS)
    B_f = gl.allocate_shared_memory(gl.float32, [8, N], FLAT)
    C_f = gl.allocate_shared_memory(gl.float32, [8, N], FLAT)

    vd = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))[None, :]
    copy_d = gl.arange(0, BLOCK_D, gl.SliceLayout(0, COPY))[None, :]
    vn = gl.arange(0, N, gl.SliceLayout(0, NV))[None, :]
    steps = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None]
    bias = gl.zeros([1, BLOCK_D], gl.float32, VEC)
    skip = gl.zeros([1, BLOCK_D], gl.float32, VEC)
    if dt_bias_ptr is not None:
        bias = gl.load(dt_bias_ptr + d0 + vd).to(gl.float32)
    if D_ptr is not None:
        skip = gl.load(D_ptr + d0 + vd).to(gl.float32)
    own_d = gl.arange(0, BLOCK_D, gl.SliceLayout(1, OWN))[:, None]
    own_n = gl.arange(0, N, gl.SliceLayout(0, OWN))[None, :]
    own = (d0 + own_d) * N + own_n
    a2 = gl.load(A_ptr + own) * LOG2E
    if initial_state_ptr is not None:
        h = gl.load(initial_state_ptr + pid_b.to(gl.int64) * channels * N + own).to(gl.float32)
    else:
        h = gl.zeros([BLOCK_D, N], gl.float32, OWN)

    groups = gl.cdiv(length, 8)
    for g in gl.static_range(STAGES - 1):
        early = gl.to_tensor(g)
        fetch(early, g, length, x_ptr, x_strides[1] * UNIT, x_s, copy_d, COPY)
        fetch(early, g, length, dt_ptr, dt_strides[1] * UNIT, dt_s, copy_d, COPY)
        fetch(early, g, length, z_ptr, z_strides[1] * UNIT, z_s, copy_d, COPY)
        fetch(early, g, length, B_ptr, B_strides[1] * 4, B_s, vn, NV)
        fetch(early, g, length, C_ptr, C_strides[1] * 4, C_s, vn, NV)
        async_copy.commit_group()
    async_copy.wait_group(STAGES - 2)
    block_barrier()
    delta = step_size(dt_s.index(0).load(VEC), bias, steps < length, SOFTPLUS)
    delta_f._reinterpret(gl.float32, [8, BLOCK_D], ROWS).store(delta)
    dx_f._reinterpret(gl.float32, [8, BLOCK_D], ROWS).store(delta * x_s.index(0).load(VEC).to(gl.float32))
    B_f._reinterpret(gl.float32, [8, N], ROWS).store(B_s.index(0).load(NV).to(gl.float32))
    C_f._reinterpret(gl.float32, [8, N], ROWS).store(C_s.index(0).load(NV).to(gl.float32))
    y_f.store(gl.zeros([8, BLOCK_D], gl.float32, VEC))

    for g in range(groups):
        # Group g + 1 must have arrived; STAGES - 3 copies may be under way after it.
        async_copy.wait_group(STAGES - 3)
        block_barrier()
        after = (g + 1) % STAGES
        before = (g + STAGES - 1) % STAGES
        # prepare; past the end the steps are masked
        delta = step_size(dt_s.index(after).load(VEC), bias, steps < length - g * 8 - 8, SOFTPLUS)
        dx = delta * x_s.index(after).load(VEC).to(gl.float32)
        b = B_s.index(after).load(NV).to(gl.float32)
        c = C_s.index(after).load(NV).to(gl.float32)
        # finish
        out = gated(y_f.load(VEC), x_s, z_s, before, skip, z_ptr is not None, VEC)
        out_ptr = y_ptr + (g * 8 - 8).to(gl.int64) * channels  # type: ignore[attr-defined]
        gl.store(out_ptr + steps * channels + vd, out.to(y_ptr.dtype.element_ty), mask=(steps < 8) & (g > 0))
        # scan
        if g % (KEEP // 8) == 0:
            gl.store(states_ptr + (slot + g // (KEEP // 8)) * (channels * N) + own, h)
        h, y0 = scan_step(0, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y1 = scan_step(1, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y2 = scan_step(2, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y3 = scan_step(3, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y4 = scan_step(4, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y5 = scan_step(5, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y6 = scan_step(6, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        h, y7 = scan_step(7, h, a2, delta_f, dx_f, B_f, C_f, OWN)
        ys = stack8(y0, y1, y2, y3, y4, y5, y6, y7)
        # Everything has been read: store.
        block_barrier()
        late = g + STAGES - 1
        fetch(late, before, length, x_ptr, x_strides[1] * UNIT, x_s, copy_d, COPY)
        fetch(late, before, length, dt_ptr, dt_strides[1] * UNIT, dt_s, copy_d, COPY)
        fetch(late, before, length, z_ptr, z_strides[1] * UNIT, z_s, copy_d, COPY)
        fetch(late, before, length, B_ptr, B_strides[1] * 4, B_s, vn, NV)
        fetch(late, before, length, C_ptr, C_strides[1] * 4, C_s, vn, NV)
        async_copy.commit_group()
        delta_f._reinterpret(gl.float32, [8, BLOCK_D], ROWS).store(delta)
        dx_f._reinterpret(gl.float32, [8, BLOCK_D], ROWS).store(dx)
        B_f._reinterpret(gl.float32, [8, N], ROWS).store(b)
        C_f._reinterpret(gl.float32, [8, N], ROWS).store(c)
        y_f.permute([1, 0]).store(ys)

    block_barrier()
    if groups > 0:
        last = groups - 1
        out = gated(y_f.load(VEC), x_s, z_s, last % STAGES, skip, z_ptr is not None, VEC)
        out_ptr = y_ptr + (last * 8).to(gl.int64) * channels
        gl.store(out_ptr + steps * channels + vd, out.to(y_ptr.dtype.element_ty), mask=steps < length - last * 8)
    if cu_seqlens_ptr is not None:
        line = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))
        begin = row.to(gl.int32)
        end = begin + length
        fill_outside(y_ptr - row * channels, pid_b, sequences, begin, end, T, channels, line)
        # Places that belong to no chunk: before the first sequence's, and up to the next sequence's.
        place = slot.to(gl.int32)
        after = gl.where(pid_b == sequences - 1, T // KEEP + sequences, end // KEEP + pid_b + 1)
        for p in range(gl.where(pid_b == 0, 0, place), place):
            gl.store(states_ptr + p.to(gl.int64) * (channels * N) + own, gl.zeros_like(h))  # type: ignore[attr-defined]
        for p in range(place + gl.cdiv(length, KEEP), after):
            gl.store(states_ptr + p.to(gl.int64) * (channels * N) + own, gl.zeros_like(h))  # type: ignore[attr-defined]
    if final_state_ptr is not None:
        gl.store(final_state_ptr + pid_b.to(gl.int64) * channels * N + own, h)
