"""Selective scan, forward, on NVIDIA GPUs. Symbols and formulas: ../README.md.

One program walks one span of a sequence for BLOCK_D channels, N states a channel in registers, STATES of them a thread.
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
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .numerics import LOG2E, next_state, sigmoid, stack8, step_size
from .sequences import at_row, fill_outside, fill_places, last_span, span_of
from .steps import fetch, per_channel, tile_layout


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
    h = next_state(ex2(delta[:, None] * a2), h, dx[:, None], b[None, :])
    return h, gl.sum(h * c[None, :], 1)


@gluon.jit(
    do_not_specialize=[
        "T", "sequences", "span", "spans", "x_strides", "dt_strides", "z_strides", "B_strides", "C_strides",
    ]
)  # fmt: skip
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
    entering_ptr,
    y_ptr,
    final_state_ptr,
    states_ptr,
    T,
    sequences,
    span,
    spans,
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
    DT_SOFTPLUS: gl.constexpr,
    WARPS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """y (B, T, D), final_state (B, D, N), and states: what enters every KEEP-th step, (places, D, N).

    A sequence is walked by `spans` programs, `span` chunks each. `entering` (sequences, spans - 1, D, N) has what
    enters all but the first (walk.py).
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

    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    blocks = channels // BLOCK_D
    pid_d, pid_b, part, start, whole, row, length, place = span_of(T, cu_seqlens_ptr, span, spans, blocks, KEEP)
    d0 = pid_d * BLOCK_D
    UNIT: gl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    x = at_row(x_ptr, x_strides, pid_b, row, T, cu_seqlens_ptr, d0, UNIT)
    dt = at_row(dt_ptr, dt_strides, pid_b, row, T, cu_seqlens_ptr, d0, UNIT)
    z = (z_ptr, z_strides[1])
    B = at_row(B_ptr, B_strides, pid_b, row, T, cu_seqlens_ptr, d0 // channels_a_B * B_strides[2] * 4, 4)
    C = at_row(C_ptr, C_strides, pid_b, row, T, cu_seqlens_ptr, d0 // channels_a_C * C_strides[2] * 4, 4)

    x_s = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    B_s = gl.allocate_shared_memory(B_ptr.dtype.element_ty, [STAGES, 8, N], ROWS)
    C_s = gl.allocate_shared_memory(C_ptr.dtype.element_ty, [STAGES, 8, N], ROWS)
    if z_ptr is not None:
        z = at_row(z_ptr, z_strides, pid_b, row, T, cu_seqlens_ptr, d0, UNIT)
        z_s = gl.allocate_shared_memory(z_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    else:
        z_s = x_s
    delta_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], FLAT)
    dx_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], FLAT)
    y_f = gl.allocate_shared_memory(gl.float32, [8, BLOCK_D], ROWS)
    B_f = gl.allocate_shared_memory(gl.float32, [8, N], FLAT)
    C_f = gl.allocate_shared_memory(gl.float32, [8, N], FLAT)

    vd = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))[None, :]
    steps = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None]
    bias = per_channel(dt_bias_ptr, d0, BLOCK_D, VEC)
    skip = per_channel(D_ptr, d0, BLOCK_D, VEC)
    own_d = gl.arange(0, BLOCK_D, gl.SliceLayout(1, OWN))[:, None]
    own_n = gl.arange(0, N, gl.SliceLayout(0, OWN))[None, :]
    own = (d0 + own_d) * N + own_n
    a2 = gl.load(A_ptr + own) * LOG2E
    if initial_state_ptr is not None:
        h = gl.load(initial_state_ptr + pid_b.to(gl.int64) * channels * N + own).to(gl.float32)
    else:
        h = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if (part > 0) & (length > 0):
        entry = pid_b.to(gl.int64) * (spans - 1) + part - 1
        h = gl.load(entering_ptr + entry * (channels * N) + own)
    y_ptr += row * channels + d0

    groups = gl.cdiv(length, 8)
    for g in gl.static_range(STAGES - 1):
        fetch(x, g * 8, length, x_s, g, BLOCK_D, UNIT, COPY)
        fetch(dt, g * 8, length, dt_s, g, BLOCK_D, UNIT, COPY)
        fetch(z, g * 8, length, z_s, g, BLOCK_D, UNIT, COPY)
        fetch(B, g * 8, length, B_s, g, N, 4, NV)
        fetch(C, g * 8, length, C_s, g, N, 4, NV)
        async_copy.commit_group()
    async_copy.wait_group(STAGES - 2)
    block_barrier()
    delta = step_size(dt_s.index(0).load(VEC), bias, steps < length, DT_SOFTPLUS)
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
        delta = step_size(dt_s.index(after).load(VEC), bias, steps < length - g * 8 - 8, DT_SOFTPLUS)
        dx = delta * x_s.index(after).load(VEC).to(gl.float32)
        b = B_s.index(after).load(NV).to(gl.float32)
        c = C_s.index(after).load(NV).to(gl.float32)
        # finish
        out = gated(y_f.load(VEC), x_s, z_s, before, skip, z_ptr is not None, VEC)
        out_ptr = y_ptr + (g * 8 - 8).to(gl.int64) * channels  # type: ignore[attr-defined]
        gl.store(out_ptr + steps * channels + vd, out.to(y_ptr.dtype.element_ty), mask=(steps < 8) & (g > 0))
        # scan
        if g % (KEEP // 8) == 0:
            gl.store(states_ptr + (place + g // (KEEP // 8)) * (channels * N) + own, h)
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
        late = (g + STAGES - 1) * 8
        fetch(x, late, length, x_s, before, BLOCK_D, UNIT, COPY)
        fetch(dt, late, length, dt_s, before, BLOCK_D, UNIT, COPY)
        fetch(z, late, length, z_s, before, BLOCK_D, UNIT, COPY)
        fetch(B, late, length, B_s, before, N, 4, NV)
        fetch(C, late, length, C_s, before, N, 4, NV)
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
        if part == 0:
            line = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))
            begin = start.to(gl.int32)
            fill_outside(y_ptr - row * channels, pid_b, sequences, begin, begin + whole, T, channels, line)
            fill_places(states_ptr, pid_b, sequences, begin, whole, T, channels * N, own, KEEP)
    if final_state_ptr is not None:
        if part == last_span(whole, span, KEEP):
            gl.store(final_state_ptr + pid_b.to(gl.int64) * channels * N + own, h)
