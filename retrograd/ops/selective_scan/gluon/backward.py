"""Selective scan, backward, on NVIDIA GPUs, N = 16. Symbols and formulas: README.md of the room.

One program walks one sequence for BLOCK_D channels, from the last chunk of KEEP steps to the first. A chunk in phases:
    prepare  all threads, over (time, channel): delta, delta x, g_y = dy silu(z) and two slopes, B and C -> fp32
    again    from the kept state, the state that enters each group of 8 steps
    scan     groups from the last: 8 states and decays again, into registers; then the adjoint runs back over them
                 g <- g_y C + g;  dC += g_y h;  dB += g delta x;  g <- decay g;  dA += delta g h_before
             sums over states in the thread and by one shuffle, sums over channels on the tensor cores (channel_sum.py)
    finish   all threads, over (time, channel): dx, ddt, dz from the three sums over states
The next chunk's arrays arrive by asynchronous copies meanwhile. dB and dC leave as fp32 sums over the program's
channels, dA, dD and ddt_bias as sums over its sequence; second stages add these in a fixed order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from .channel_sum import add_step, own_layout, place, selectors
from .forward import fill_outside, sequence
from .numerics import LN2, LOG2E, add_compensated, block_barrier, copy_async, ex2, forget, sigmoid, softplus, stack8


@gluon.jit
def locate(ptr, strides, batch, t, UNIT: gl.constexpr):
    """Where a step of a batch begins. The compiler knows nothing of the numbers, so it does not keep the pointers."""
    return ptr + (forget(batch).to(gl.int64) * strides[0] + forget(t).to(gl.int64) * strides[1]) * UNIT


@gluon.jit
def fetch(ptr, stride, tile, columns, left, STEPS: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr):
    """Begin to copy a tile (STEPS, COLUMNS) to shared memory; of `left` steps, what is past the end comes as zeros."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    rows = forget(gl.arange(0, STEPS, gl.SliceLayout(1, ROWS)))[:, None]
    tile = tile._reinterpret(ptr.dtype.element_ty, [STEPS, COLUMNS], FLAT)
    copy_async(tile, ptr + (rows * stride + columns), mask=rows < left)


@gluon.jit
def forward_step(t, h, a2, delta_f, dx_f, B_f, OWN: gl.constexpr):
    """A step of the recurrence: the new states, and the decay."""
    delta = delta_f.index(t).load(gl.SliceLayout(1, OWN))
    dx = dx_f.index(t).load(gl.SliceLayout(1, OWN))
    b = B_f.index(t).load(gl.SliceLayout(0, OWN))
    decay = ex2(delta[:, None] * a2)
    return decay * h + dx[:, None] * b[None, :], decay


@gluon.jit
def adjoint_step(t: gl.constexpr, g, dA, sums, before, h, decay, a2, selector, delta_f, dx_f, gy_f, B_f, C_f,
                 N: gl.constexpr, OWN: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """A step back.

    Returns the gradient of the state before, dA and the sums over channels so far, and three sums over states: y, the
    gradient of delta x, and that of delta through the decay.
    """
    delta = delta_f.index(t).load(gl.SliceLayout(1, OWN))[:, None]
    dx = dx_f.index(t).load(gl.SliceLayout(1, OWN))[:, None]
    gy = gy_f.index(t).load(gl.SliceLayout(1, OWN))[:, None]
    b = B_f.index(t).load(gl.SliceLayout(0, OWN))[None, :]
    c = C_f.index(t).load(gl.SliceLayout(0, OWN))[None, :]
    y = gl.sum(h * c, 1)
    g = gy * c + g
    sums = add_step(sums, gy * h, g * dx, selector, t, N, SPLIT)
    ddx = gl.sum(g * b, 1)
    g = g * decay
    dlog = g * before  # the gradient of delta A
    dA = dlog * delta + dA
    return g, dA, sums, y, ddx, gl.sum(dlog * a2, 1)


@gluon.jit
def one_minus_exp(delta):
    """1 - exp(-delta) for delta >= 0, which is softplus' slope where delta is its value."""
    p = delta * 0.0001984127 - 0.0013888889
    p = p * delta + 0.0083333333
    p = p * delta - 0.041666667
    p = p * delta + 0.16666667
    p = p * delta - 0.5
    p = p * delta + 1.0
    return gl.where(delta < 0.4, p * delta, 1.0 - ex2(delta * -LOG2E))


@gluon.jit(
    do_not_specialize=["T", "sequences", "dy_strides", "x_strides", "dt_strides", "z_strides", "B_strides", "C_strides"]
)
def backward_scan(
    dy_ptr,
    dfinal_state_ptr,
    x_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    D_ptr,
    z_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    states_ptr,
    dx_ptr,
    ddt_ptr,
    dz_ptr,
    dinitial_state_ptr,
    dBC_partial_ptr,
    dA_partial_ptr,
    dD_partial_ptr,
    ddt_bias_partial_ptr,
    T,
    sequences,
    channels,
    channels_a_B,
    channels_a_C,
    dy_strides,
    x_strides,
    dt_strides,
    z_strides,
    B_strides,
    C_strides,
    N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    KEEP: gl.constexpr,
    SOFTPLUS: gl.constexpr,
    SPLIT: gl.constexpr,
    WARPS: gl.constexpr,
):
    """Strides as in the forward pass; gradients are dense.

    dBC_partial (rows, channels / BLOCK_D, 2, N): of dC, then of dB. The other partial sums have a leading axis of
    sequences: dA_partial (sequences, D, N), dD_partial and ddt_bias_partial (sequences, D).
    """
    GROUPS: gl.constexpr = KEEP // 8
    PASS: gl.constexpr = 128 * WARPS // BLOCK_D  # steps that all threads together hold at once
    PARTS: gl.constexpr = KEEP // PASS
    OWN: gl.constexpr = own_layout(BLOCK_D, N, WARPS)
    VEC: gl.constexpr = gl.BlockedLayout([1, 4], [128 // BLOCK_D, BLOCK_D // 4], [WARPS, 1], [1, 0])
    NV: gl.constexpr = gl.BlockedLayout([1, 4], [128 // N, N // 4], [WARPS, 1], [1, 0])
    WIDE: gl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth  # elements in the 16 bytes of a copy
    COPY: gl.constexpr = gl.BlockedLayout([1, WIDE], [32 * WIDE // BLOCK_D, BLOCK_D // WIDE], [WARPS, 1], [1, 0])
    COPYN: gl.constexpr = gl.BlockedLayout([1, 4], [128 // N, N // 4], [WARPS, 1], [1, 0])
    SUM: gl.constexpr = gl.BlockedLayout([WARPS, 1, 1], [1, 32 // N, N], [1, WARPS, 1], [2, 1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    STATE: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])

    blocks = channels // BLOCK_D
    pid_d = gl.program_id(0) % blocks
    pid_b = gl.program_id(0) // blocks
    row, length, slot = sequence(pid_b, T, cu_seqlens_ptr, KEEP)
    d0 = pid_d * BLOCK_D
    batch = pid_b if cu_seqlens_ptr is None else pid_b * 0
    first = (row - batch.to(gl.int64) * T).to(gl.int32)  # time within its batch

    # As they come, of one chunk.
    dy_s = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [PARTS, PASS, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt_ptr.dtype.element_ty, [PARTS, PASS, BLOCK_D], ROWS)
    x_s = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [PARTS, PASS, BLOCK_D], ROWS)
    B_s = gl.allocate_shared_memory(B_ptr.dtype.element_ty, [KEEP, N], ROWS)
    C_s = gl.allocate_shared_memory(C_ptr.dtype.element_ty, [KEEP, N], ROWS)
    if z_ptr is not None:
        z_s = gl.allocate_shared_memory(z_ptr.dtype.element_ty, [PARTS, PASS, BLOCK_D], ROWS)
        gate_f = gl.allocate_shared_memory(gl.float32, [PARTS, PASS, BLOCK_D], ROWS)
    # In fp32.
    delta_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, BLOCK_D], ROWS)
    dx_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, BLOCK_D], ROWS)  # y, once a group is done
    gy_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, BLOCK_D], ROWS)
    ddx_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, BLOCK_D], ROWS)
    dlog_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, BLOCK_D], ROWS)
    B_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, N], ROWS)
    C_f = gl.allocate_shared_memory(gl.float32, [GROUPS, 8, N], ROWS)
    h_f = gl.allocate_shared_memory(gl.float32, [2 * GROUPS, BLOCK_D, N], STATE)  # before steps 0, 4, 8, ...
    sums_f = gl.allocate_shared_memory(gl.float32, [BLOCK_D, N], ROWS)

    vd = gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))[None, :]
    copy_d = gl.arange(0, BLOCK_D, gl.SliceLayout(0, COPY))[None, :]
    copy_n = gl.arange(0, N, gl.SliceLayout(0, COPYN))[None, :]
    steps = gl.arange(0, PASS, gl.SliceLayout(1, VEC))[:, None]
    own = (d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(1, OWN)))[:, None] * N + gl.arange(0, N, gl.SliceLayout(0, OWN))[
        None, :
    ]
    a2 = gl.load(A_ptr + own) * LOG2E
    selector = selectors(BLOCK_D, N, OWN)
    g = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if dfinal_state_ptr is not None:
        g = gl.load(dfinal_state_ptr + pid_b.to(gl.int64) * channels * N + own).to(gl.float32)
    dA_f = gl.allocate_shared_memory(gl.float32, [BLOCK_D, N], STATE)  # registers are scarcer
    dA_f.store(gl.zeros([BLOCK_D, N], gl.float32, OWN))

    dD = gl.zeros([PASS, BLOCK_D], gl.float32, VEC)
    dbias = gl.zeros([PASS, BLOCK_D], gl.float32, VEC)
    dD_lost = gl.zeros([PASS, BLOCK_D], gl.float32, VEC)
    dbias_lost = gl.zeros([PASS, BLOCK_D], gl.float32, VEC)
    HELD: gl.constexpr = gl.BlockedLayout([1, 4], [128 // N, N // 4], [WARPS, 1], [1, 0])
    kept = (
        gl.arange(0, BLOCK_D, gl.SliceLayout(1, HELD))[:, None] * N + gl.arange(0, N, gl.SliceLayout(0, HELD))[None, :]
    )
    chunks = gl.cdiv(length, KEEP)
    if chunks > 0:
        copy_async(h_f.index(0), states_ptr + (slot + (chunks - 1)) * (channels * N) + d0 * N + kept)
        start = (chunks - 1) * KEEP
        fetch(
            locate(dy_ptr, dy_strides, batch, first + start, WIDE) + d0,
            dy_strides[1] * WIDE,
            dy_s,
            copy_d,
            length - start,
            KEEP,
            BLOCK_D,
            COPY,
        )
        fetch(
            locate(dt_ptr, dt_strides, batch, first + start, WIDE) + d0,
            dt_strides[1] * WIDE,
            dt_s,
            copy_d,
            length - start,
            KEEP,
            BLOCK_D,
            COPY,
        )
        fetch(
            locate(x_ptr, x_strides, batch, first + start, WIDE) + d0,
            x_strides[1] * WIDE,
            x_s,
            copy_d,
            length - start,
            KEEP,
            BLOCK_D,
            COPY,
        )
        fetch(
            locate(B_ptr, B_strides, batch, first + start, 4) + d0 // channels_a_B * B_strides[2] * 4,
            B_strides[1] * 4,
            B_s,
            copy_n,
            length - start,
            KEEP,
            N,
            COPYN,
        )
        fetch(
            locate(C_ptr, C_strides, batch, first + start, 4) + d0 // channels_a_C * C_strides[2] * 4,
            C_strides[1] * 4,
            C_s,
            copy_n,
            length - start,
            KEEP,
            N,
            COPYN,
        )
        if z_ptr is not None:
            fetch(
                locate(z_ptr, z_strides, batch, first + start, WIDE) + d0,
                z_strides[1] * WIDE,
                z_s,
                copy_d,
                length - start,
                KEEP,
                BLOCK_D,
                COPY,
            )
    async_copy.commit_group()

    for k in range(chunks):
        chunk = chunks - 1 - k
        start = chunk * KEEP
        async_copy.wait_group(0)
        block_barrier()
        # prepare
        for part in gl.static_range(PARTS):
            inside = steps < length - start - part * PASS
            x = x_s.index(part).load(VEC).to(gl.float32)
            gy = dy_s.index(part).load(VEC).to(gl.float32)
            delta = dt_s.index(part).load(VEC).to(gl.float32)
            if dt_bias_ptr is not None:
                delta += gl.load(dt_bias_ptr + d0 + vd).to(gl.float32)
            if SOFTPLUS:
                delta = softplus(delta)
            delta = gl.where(inside, delta, 0.0)
            if z_ptr is not None:
                z = z_s.index(part).load(VEC).to(gl.float32)
                s = sigmoid(z)
                zs = z * s
                gate_f.index(part).store(gy * (s + zs * (1.0 - s)))
                gy = gy * zs
            delta_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).store(delta)
            dx_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).store(delta * x)
            gy_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).store(gy)
        B_f._reinterpret(gl.float32, [KEEP, N], ROWS).store(B_s.load(NV).to(gl.float32))
        C_f._reinterpret(gl.float32, [KEEP, N], ROWS).store(C_s.load(NV).to(gl.float32))
        block_barrier()
        if chunk > 0:
            before = start - KEEP
            fetch(
                locate(dy_ptr, dy_strides, batch, first + before, WIDE) + d0,
                dy_strides[1] * WIDE,
                dy_s,
                copy_d,
                length - before,
                KEEP,
                BLOCK_D,
                COPY,
            )
            fetch(
                locate(dt_ptr, dt_strides, batch, first + before, WIDE) + d0,
                dt_strides[1] * WIDE,
                dt_s,
                copy_d,
                length - before,
                KEEP,
                BLOCK_D,
                COPY,
            )
            fetch(
                locate(B_ptr, B_strides, batch, first + before, 4) + d0 // channels_a_B * B_strides[2] * 4,
                B_strides[1] * 4,
                B_s,
                copy_n,
                length - before,
                KEEP,
                N,
                COPYN,
            )
            fetch(
                locate(C_ptr, C_strides, batch, first + before, 4) + d0 // channels_a_C * C_strides[2] * 4,
                C_strides[1] * 4,
                C_s,
                copy_n,
                length - before,
                KEEP,
                N,
                COPYN,
            )
            if z_ptr is not None:
                fetch(
                    locate(z_ptr, z_strides, batch, first + before, WIDE) + d0,
                    z_strides[1] * WIDE,
                    z_s,
                    copy_d,
                    length - before,
                    KEEP,
                    BLOCK_D,
                    COPY,
                )
        async_copy.commit_group()
        # again
        h = h_f.index(0).load(OWN)
        for j in range(GROUPS):
            delta_j = delta_f.index(j)._reinterpret(gl.float32, [8, BLOCK_D], FLAT)
            dx_j = dx_f.index(j)._reinterpret(gl.float32, [8, BLOCK_D], FLAT)
            B_j = B_f.index(j)._reinterpret(gl.float32, [8, N], FLAT)
            if j > 0:
                h_f.index(2 * j).store(h)
            for t in gl.static_range(4):
                h, _ = forward_step(t, h, a2, delta_j, dx_j, B_j, OWN)
            h_f.index(2 * j + 1).store(h)
            if j < GROUPS - 1:
                for t in gl.static_range(4, 8):
                    h, _ = forward_step(t, h, a2, delta_j, dx_j, B_j, OWN)
        # scan
        dA = gl.zeros([BLOCK_D, N], gl.float32, OWN)
        for i in range(GROUPS):
            j = GROUPS - 1 - i
            delta_j = delta_f.index(j)._reinterpret(gl.float32, [8, BLOCK_D], FLAT)
            dx_j = dx_f.index(j)._reinterpret(gl.float32, [8, BLOCK_D], FLAT)
            gy_j = gy_f.index(j)._reinterpret(gl.float32, [8, BLOCK_D], FLAT)
            B_j = B_f.index(j)._reinterpret(gl.float32, [8, N], FLAT)
            C_j = C_f.index(j)._reinterpret(gl.float32, [8, N], FLAT)
            sums = gl.zeros([BLOCK_D, N], gl.float32, OWN)
            h4 = h_f.index(2 * j + 1).load(OWN)
            h5, e4 = forward_step(4, h4, a2, delta_j, dx_j, B_j, OWN)
            h6, e5 = forward_step(5, h5, a2, delta_j, dx_j, B_j, OWN)
            h7, e6 = forward_step(6, h6, a2, delta_j, dx_j, B_j, OWN)
            h8, e7 = forward_step(7, h7, a2, delta_j, dx_j, B_j, OWN)
            g, dA, sums, y7, u7, l7 = adjoint_step(
                7, g, dA, sums, h7, h8, e7, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            g, dA, sums, y6, u6, l6 = adjoint_step(
                6, g, dA, sums, h6, h7, e6, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            g, dA, sums, y5, u5, l5 = adjoint_step(
                5, g, dA, sums, h5, h6, e5, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            g, dA, sums, y4, u4, l4 = adjoint_step(
                4, g, dA, sums, h4, h5, e4, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            h0 = h_f.index(2 * j).load(OWN)
            h1, e0 = forward_step(0, h0, a2, delta_j, dx_j, B_j, OWN)
            h2, e1 = forward_step(1, h1, a2, delta_j, dx_j, B_j, OWN)
            h3, e2 = forward_step(2, h2, a2, delta_j, dx_j, B_j, OWN)
            h4x, e3 = forward_step(3, h3, a2, delta_j, dx_j, B_j, OWN)
            g, dA, sums, y3, u3, l3 = adjoint_step(
                3, g, dA, sums, h3, h4x, e3, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            g, dA, sums, y2, u2, l2 = adjoint_step(
                2, g, dA, sums, h2, h3, e2, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            g, dA, sums, y1, u1, l1 = adjoint_step(
                1, g, dA, sums, h1, h2, e1, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            g, dA, sums, y0, u0, l0 = adjoint_step(
                0, g, dA, sums, h0, h1, e0, a2, selector, delta_j, dx_j, gy_j, B_j, C_j, N, OWN, SPLIT
            )
            block_barrier()
            dx_f.index(j).permute([1, 0]).store(stack8(y0, y1, y2, y3, y4, y5, y6, y7))
            ddx_f.index(j).permute([1, 0]).store(stack8(u0, u1, u2, u3, u4, u5, u6, u7))
            dlog_f.index(j).permute([1, 0]).store(stack8(l0, l1, l2, l3, l4, l5, l6, l7))
            sums_f.store(sums)
            block_barrier()
            if dBC_partial_ptr is not None:
                CW: gl.constexpr = BLOCK_D // WARPS
                total = gl.sum(sums_f._reinterpret(gl.float32, [WARPS, CW, N], CUBE).load(SUM), 0)
                d = forget(gl.arange(0, CW, gl.SliceLayout(1, gl.SliceLayout(0, SUM))))[:, None]
                n = forget(gl.arange(0, N, gl.SliceLayout(0, gl.SliceLayout(0, SUM))))[None, :]
                t, which, state, valid = place(d, n, N)
                at = (row + start + j * 8) * (blocks * 2 * N) + pid_d * (2 * N)
                gl.store(
                    dBC_partial_ptr + at + t * (blocks * 2 * N) + which * N + state,
                    total,
                    mask=(t < length - start - j * 8) & valid,
                )
        block_barrier()
        # finish
        dA_f.store(dA_f.load(OWN) + dA)
        for part in gl.static_range(PARTS):
            x = x_s.index(part).load(VEC).to(gl.float32)
            gy = gy_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).load(VEC)
            ddx = ddx_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).load(VEC)
            dlog = dlog_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).load(VEC)
            delta = delta_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).load(VEC)
            skip = gl.zeros([1, BLOCK_D], gl.float32, VEC)
            if D_ptr is not None:
                skip = gl.load(D_ptr + d0 + vd).to(gl.float32)
            ddt = dlog * LN2 + ddx * x
            if SOFTPLUS:
                ddt = ddt * one_minus_exp(delta)
            first_step = start + part * PASS
            inside = steps < length - first_step
            ddt = gl.where(inside, ddt, 0.0)
            at = (row + forget(first_step)) * channels + d0
            offsets = forget(steps) * channels + vd
            if dx_ptr is not None:
                gl.store(dx_ptr + at + offsets, (gy * skip + ddx * delta).to(dx_ptr.dtype.element_ty), mask=inside)
            if ddt_ptr is not None:
                gl.store(ddt_ptr + at + offsets, ddt.to(ddt_ptr.dtype.element_ty), mask=inside)
            if dz_ptr is not None:
                y = dx_f._reinterpret(gl.float32, [PARTS, PASS, BLOCK_D], ROWS).index(part).load(VEC)
                dz = gate_f.index(part).load(VEC) * (y + skip * x)
                gl.store(dz_ptr + at + offsets, dz.to(dz_ptr.dtype.element_ty), mask=inside)
            dD, dD_lost = add_compensated(dD, dD_lost, gy * x)
            dbias, dbias_lost = add_compensated(dbias, dbias_lost, ddt)
        block_barrier()
        if chunk > 0:
            copy_async(h_f.index(0), states_ptr + (forget(slot) + (chunk - 1)) * (channels * N) + d0 * N + kept)
            fetch(
                locate(x_ptr, x_strides, batch, first + (start - KEEP), WIDE) + d0,
                x_strides[1] * WIDE,
                x_s,
                copy_d,
                length - (start - KEEP),
                KEEP,
                BLOCK_D,
                COPY,
            )
        async_copy.commit_group()

    if dinitial_state_ptr is not None:
        gl.store(dinitial_state_ptr + pid_b.to(gl.int64) * channels * N + own, g)
    if dA_partial_ptr is not None:
        gl.store(dA_partial_ptr + pid_b.to(gl.int64) * channels * N + own, dA_f.load(OWN))
    at_d = pid_b.to(gl.int64) * channels + d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))
    if dD_partial_ptr is not None:
        gl.store(dD_partial_ptr + at_d, gl.sum(dD, 0))
    if ddt_bias_partial_ptr is not None:
        gl.store(ddt_bias_partial_ptr + at_d, gl.sum(dbias, 0))
    if cu_seqlens_ptr is not None:
        line = d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))
        begin = row.to(gl.int32)
        fill_outside(dx_ptr, pid_b, sequences, begin, begin + length, T, channels, line)
        fill_outside(ddt_ptr, pid_b, sequences, begin, begin + length, T, channels, line)
        fill_outside(dz_ptr, pid_b, sequences, begin, begin + length, T, channels, line)
        pair = pid_d * (2 * N) + gl.arange(0, 2 * N, gl.SliceLayout(0, NV))
        fill_outside(dBC_partial_ptr, pid_b, sequences, begin, begin + length, T, blocks * 2 * N, pair)
