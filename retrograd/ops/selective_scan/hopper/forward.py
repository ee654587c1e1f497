"""Selective scan, forward, on NVIDIA GPUs. Symbols and formulas: ../README.md.

One program walks one span of a sequence for a block of channels, with all their states in registers.
Its loop works on three groups of 8 steps at once, in one basic block, so that the compiler mixes work that does not
depend on each other:
    prepare  group g + 1: delta, delta x, B and C to fp32
    scan     group g:     h = 2^(delta A log2 e) h + delta x B;  y = sum over n of C h
    finish   group g - 1: out = (y + D x) silu(z)
All stores to shared memory stand at the end of the loop, so two barriers an iteration are enough.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from retrograd.core.kernels.gluon import block_barrier, ex2

from .arrays import Inputs, Scanned
from .numerics import LOG2E, next_state, sigmoid, stack8, step_size
from .sequences import at_row, fill_outside, fill_slots, last_span, span_of
from .steps import fetch, per_channel, tile_layout


@gluon.jit
def gated(y, raw, stage, skip, GATE: gl.constexpr, VEC: gl.constexpr):
    """(y + D x) silu(z)"""
    out = y + skip * raw.x.index(stage).load(VEC).to(gl.float32)
    if GATE:
        z = raw.z.index(stage).load(VEC).to(gl.float32)
        out = out * (z * sigmoid(z))
    return out


@gluon.jit
def fetch_group(given, g, length, raw, stage, SIZES: gl.constexpr):
    """Begin to copy group g to a stage."""
    WIDE: gl.constexpr = 8 * SIZES.channels // (32 * SIZES.warps)  # channels a thread prepares
    # A copy is of 4 bytes at least, so with 64 states of 16-bit rows half of the threads copy nothing.
    PIECE: gl.constexpr = max(WIDE, 32 // given.x.pointer.dtype.element_ty.primitive_bitwidth)
    UNIT: gl.constexpr = 128 // given.x.pointer.dtype.element_ty.primitive_bitwidth
    COPY: gl.constexpr = tile_layout(SIZES.channels, PIECE, SIZES.warps)
    NV: gl.constexpr = tile_layout(SIZES.N, 4, SIZES.warps)
    fetch(given.x, g * 8, length, raw.x, stage, SIZES.channels, UNIT, COPY)
    fetch(given.dt, g * 8, length, raw.dt, stage, SIZES.channels, UNIT, COPY)
    fetch(given.z, g * 8, length, raw.z, stage, SIZES.channels, UNIT, COPY)
    fetch(given.B, g * 8, length, raw.B, stage, SIZES.N, 4, NV)
    fetch(given.C, g * 8, length, raw.C, stage, SIZES.N, 4, NV)
    async_copy.commit_group()


@gluon.jit
def prepare(raw, stage, bias, steps, length, g, SIZES: gl.constexpr, DT_SOFTPLUS: gl.constexpr, VEC: gl.constexpr):
    """Group g + 1 as the scan takes it; past the end delta is 0."""
    NV: gl.constexpr = tile_layout(SIZES.N, 4, SIZES.warps)
    delta = step_size(raw.dt.index(stage).load(VEC), bias, steps < length - g * 8 - 8, DT_SOFTPLUS)
    dx = delta * raw.x.index(stage).load(VEC).to(gl.float32)
    b = raw.B.index(stage).load(NV).to(gl.float32)
    c = raw.C.index(stage).load(NV).to(gl.float32)
    return Scanned(delta, dx, b, c)


@gluon.jit
def put(values, group):
    """Store what `prepare` returns."""
    as_rows(group.delta).store(values.delta)
    as_rows(group.dx).store(values.dx)
    as_rows(group.B).store(values.B)
    as_rows(group.C).store(values.C)


@gluon.jit
def as_rows(memory):
    """Shared memory (8, columns), to store a tile in it."""
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    return memory._reinterpret(gl.float32, memory.shape, ROWS)


@gluon.jit
def scan_step(t: gl.constexpr, h, a2, group, OWN: gl.constexpr):
    """One step of the recurrence: the new states, and y."""
    delta = group.delta.index(t).load(gl.SliceLayout(1, OWN))
    dx = group.dx.index(t).load(gl.SliceLayout(1, OWN))
    b = group.B.index(t).load(gl.SliceLayout(0, OWN))
    c = group.C.index(t).load(gl.SliceLayout(0, OWN))
    h = next_state(ex2(delta[:, None] * a2), h, dx[:, None], b[None, :])
    return h, gl.sum(h * c[None, :], 1)


@gluon.jit(do_not_specialize=["x", "dt", "B", "C", "z", "lengths"])
def forward_scan(
    x,
    dt,
    A_ptr,
    B,
    C,
    D_ptr,
    z,
    dt_bias_ptr,
    initial_state_ptr,
    cu_seqlens_ptr,
    entering_ptr,
    y_ptr,
    final_state_ptr,
    states_ptr,
    lengths,
    channels,
    SIZES: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
):
    """y (B, T, D), final_state (B, D, N), and states: what enters every chunk, (slots, D, N).

    `entering` (sequences, spans - 1, D, N) has what enters all spans of a sequence but the first (walk.py). Channels
    and states are dense.
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    KEEP: gl.constexpr = SIZES.chunk
    STAGES: gl.constexpr = SIZES.stages
    LANES: gl.constexpr = N // SIZES.states
    WIDE: gl.constexpr = 8 * BLOCK_D // (32 * SIZES.warps)  # channels a thread prepares
    OWN: gl.constexpr = gl.BlockedLayout([1, SIZES.states], [32 // LANES, LANES], [SIZES.warps, 1], [1, 0])
    VEC: gl.constexpr = tile_layout(BLOCK_D, WIDE, SIZES.warps)
    NV: gl.constexpr = tile_layout(N, 4, SIZES.warps)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    UNIT: gl.constexpr = 128 // x.pointer.dtype.element_ty.primitive_bitwidth

    span = span_of(lengths, cu_seqlens_ptr, channels.total // BLOCK_D, KEEP)
    T, number, row, length = lengths.time, span.number, span.row, span.length
    d0 = span.block * BLOCK_D
    x = at_row(x, number, row, T, cu_seqlens_ptr, d0, UNIT)
    dt = at_row(dt, number, row, T, cu_seqlens_ptr, d0, UNIT)
    B = at_row(B, number, row, T, cu_seqlens_ptr, d0 // channels.of_B * B.group * 4, 4)
    C = at_row(C, number, row, T, cu_seqlens_ptr, d0 // channels.of_C * C.group * 4, 4)

    x_s = gl.allocate_shared_memory(x.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    B_s = gl.allocate_shared_memory(B.pointer.dtype.element_ty, [STAGES, 8, N], ROWS)
    C_s = gl.allocate_shared_memory(C.pointer.dtype.element_ty, [STAGES, 8, N], ROWS)
    if z.pointer is not None:
        z = at_row(z, number, row, T, cu_seqlens_ptr, d0, UNIT)
        z_s = gl.allocate_shared_memory(z.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    else:
        z_s = x_s
    given = Inputs(None, x, dt, z, B, C)
    raw = Inputs(None, x_s, dt_s, z_s, B_s, C_s)
    delta_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], FLAT)
    dx_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], FLAT)
    y_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], ROWS)
    B_f = gl.allocate_shared_memory(gl.float32, [8, N], FLAT)
    C_f = gl.allocate_shared_memory(gl.float32, [8, N], FLAT)
    group = Scanned(delta_f, dx_f, B_f, C_f)

    vd = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))[None, :]
    steps = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None]
    bias = per_channel(dt_bias_ptr, d0, BLOCK_D, VEC)
    skip = per_channel(D_ptr, d0, BLOCK_D, VEC)
    own_d = gl.arange(0, BLOCK_D, gl.SliceLayout(1, OWN))[:, None]
    own_n = gl.arange(0, N, gl.SliceLayout(0, OWN))[None, :]
    own = (d0 + own_d) * N + own_n
    a2 = gl.load(A_ptr + own) * LOG2E
    if initial_state_ptr is not None:
        h = gl.load(initial_state_ptr + number.to(gl.int64) * channels.total * N + own).to(gl.float32)
    else:
        h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if (span.part > 0) & (length > 0):
        entry = number.to(gl.int64) * (lengths.spans - 1) + span.part - 1
        h = gl.load(entering_ptr + entry * (channels.total * N) + own)
    y_ptr += row * channels.total + d0

    groups = gl.cdiv(length, 8)
    for g in gl.static_range(STAGES - 1):
        fetch_group(given, g, length, raw, g, SIZES)
    async_copy.wait_group(STAGES - 2)
    block_barrier()
    delta = step_size(raw.dt.index(0).load(VEC), bias, steps < length, DT_SOFTPLUS)
    as_rows(group.delta).store(delta)
    as_rows(group.dx).store(delta * raw.x.index(0).load(VEC).to(gl.float32))
    as_rows(group.B).store(raw.B.index(0).load(NV).to(gl.float32))
    as_rows(group.C).store(raw.C.index(0).load(NV).to(gl.float32))
    y_f.store(gl.zeros([8, BLOCK_D], gl.float32, VEC))

    for g in range(groups):
        # Group g + 1 must have arrived; STAGES - 3 copies may be under way after it.
        async_copy.wait_group(STAGES - 3)
        block_barrier()
        after = (g + 1) % STAGES
        before = (g + STAGES - 1) % STAGES
        # prepare
        values = prepare(raw, after, bias, steps, length, g, SIZES, DT_SOFTPLUS, VEC)
        # finish
        out = gated(y_f.load(VEC), raw, before, skip, z.pointer is not None, VEC)
        out_ptr = y_ptr + (g * 8 - 8).to(gl.int64) * channels.total  # type: ignore[attr-defined]
        gl.store(out_ptr + steps * channels.total + vd, out.to(y_ptr.dtype.element_ty), mask=(steps < 8) & (g > 0))
        # scan
        if g % (KEEP // 8) == 0:
            gl.store(states_ptr + (span.slot + g // (KEEP // 8)) * (channels.total * N) + own, h)
        h, y0 = scan_step(0, h, a2, group, OWN)
        h, y1 = scan_step(1, h, a2, group, OWN)
        h, y2 = scan_step(2, h, a2, group, OWN)
        h, y3 = scan_step(3, h, a2, group, OWN)
        h, y4 = scan_step(4, h, a2, group, OWN)
        h, y5 = scan_step(5, h, a2, group, OWN)
        h, y6 = scan_step(6, h, a2, group, OWN)
        h, y7 = scan_step(7, h, a2, group, OWN)
        ys = stack8(y0, y1, y2, y3, y4, y5, y6, y7)
        # Everything has been read: store.
        block_barrier()
        fetch_group(given, g + STAGES - 1, length, raw, before, SIZES)
        put(values, group)
        y_f.permute([1, 0]).store(ys)

    block_barrier()
    if groups > 0:
        last = groups - 1
        out = gated(y_f.load(VEC), raw, last % STAGES, skip, z.pointer is not None, VEC)
        out_ptr = y_ptr + (last * 8).to(gl.int64) * channels.total
        gl.store(out_ptr + steps * channels.total + vd, out.to(y_ptr.dtype.element_ty), mask=steps < length - last * 8)
    if cu_seqlens_ptr is not None:
        if span.part == 0:
            line = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))
            fill_outside(y_ptr - row * channels.total, span, lengths, channels.total, line)
            fill_slots(states_ptr, span, lengths, channels.total * N, own, KEEP)
    if final_state_ptr is not None:
        if span.part == last_span(span.whole, lengths.span, KEEP):
            gl.store(final_state_ptr + number.to(gl.int64) * channels.total * N + own, h)
