"""Selective scan, backward, on NVIDIA GPUs since Hopper. Symbols and formulas: ../README.md.

One program walks one span of a sequence for a block of channels, from the last chunk of steps to the first. Its
warps are of three kinds, each with its own registers, that work side by side on groups of 8 steps:
    make       over (time, channel): delta, x, delta x, g_y = dy silu(z), B and C, in fp32 where they are computed with;
               and over (channel, state) the states that enter every 2, 4 or 8 steps, from the state that was kept
               before the chunk
    walk_back  over (channel, state), groups from the last: states and decays again, into registers; then the adjoint
                   g <- g_y C + g;  dC += g_y h;  dB += g delta x;  g <- decay g;  dA += delta g h_before
               sums over states in the thread, sums over channels of a quad of lanes on the tensor cores
               (channel_sum.py)
    finish     over (time, channel): dx, ddt and dz from the sums over states; adds sums of different threads
`steps.py` says where a group lies in shared memory. dB and dC leave as fp32 sums over the program's channels, dA, dD
and ddt_bias as sums over pieces of steps; second stages add these in a fixed order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.rings import Ring, barriers, ring_of

from .arrays import Entering, Group, Groups, Inputs, Results, StateOffsets
from .channel_sum import own_layout
from .finish import finish
from .make import STAGES, make
from .sequences import at_row, fill_outside, fill_slots, first_slot, last_span, span_of
from .steps import state_offsets, tile_layout, vector_layout
from .walk_back import walk_back


@gluon.jit(do_not_specialize=["dy", "x", "dt", "B", "C", "z", "lengths"])
def backward_scan(
    dy,
    x,
    dt,
    A_ptr,
    B,
    C,
    D_ptr,
    z,
    dt_bias_ptr,
    cu_seqlens_ptr,
    states_ptr,
    pointers,
    gradients,
    lengths,
    channels,
    SIZES: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
):
    """Spans as in the forward pass; gradients are dense.

    leaving (sequences, spans - 1, D, N): the gradient of the state that leaves a span, but for the last (walk.py).
    dBC_partial (rows, blocks of channels, 2, N): of dC, then of dB. The other partial sums have a leading axis of
    slots, one for every piece of steps: dA_partial (slots, D, N), dD_partial and ddt_bias_partial (slots, D).
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    WARPS: gl.constexpr = SIZES.warps
    RING: gl.constexpr = SIZES.chunk // 8 + SIZES.extra  # of groups
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    PARTS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    STATE: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
    WIDE: gl.constexpr = 128 // x.pointer.dtype.element_ty.primitive_bitwidth  # the unit of strides

    T = lengths.time
    total = channels.total
    blocks = total // BLOCK_D
    span = span_of(lengths, cu_seqlens_ptr, blocks, SIZES.chunk)
    number, row = span.number, span.row
    piece = first_slot(number, span.start, T, cu_seqlens_ptr, SIZES.piece)
    piece += span.part * lengths.span // (SIZES.piece // SIZES.chunk)
    d0 = span.block * BLOCK_D
    state = number.to(gl.int64) * total + d0  # in arrays (sequences, D)
    leaving = (number.to(gl.int64) * (lengths.spans - 1) + span.part) * total + d0
    dy = at_row(dy, number, row, T, cu_seqlens_ptr, d0, WIDE)
    x = at_row(x, number, row, T, cu_seqlens_ptr, d0, WIDE)
    dt = at_row(dt, number, row, T, cu_seqlens_ptr, d0, WIDE)
    B = at_row(B, number, row, T, cu_seqlens_ptr, d0 // channels.of_B * B.group * 4, 4)
    C = at_row(C, number, row, T, cu_seqlens_ptr, d0 // channels.of_C * C.group * 4, 4)

    # As they come.
    dy_s = gl.allocate_shared_memory(dy.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    x_s = gl.allocate_shared_memory(x.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    B_s = gl.allocate_shared_memory(B.pointer.dtype.element_ty, [STAGES, 8, N], ROWS)
    C_s = gl.allocate_shared_memory(C.pointer.dtype.element_ty, [STAGES, 8, N], ROWS)
    if z.pointer is not None:
        z = at_row(z, number, row, T, cu_seqlens_ptr, d0, WIDE)
        z_s = gl.allocate_shared_memory(z.pointer.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    else:
        z_s: gl.constexpr = None  # type: ignore[no-redef]
    kept = gl.allocate_shared_memory(gl.float32, [BLOCK_D, N], STATE)
    # The ring of groups.
    delta_f = gl.allocate_shared_memory(gl.float32, [RING, 8, BLOCK_D], ROWS)
    x_f = gl.allocate_shared_memory(x.pointer.dtype.element_ty, [RING, 8, BLOCK_D], ROWS)
    dx_f = gl.allocate_shared_memory(gl.float32, [RING, 8, BLOCK_D], ROWS)
    gy_f = gl.allocate_shared_memory(gl.float32, [RING, 8, BLOCK_D], ROWS)
    if gradients.dz_ptr is not None:
        gate_f = gl.allocate_shared_memory(gl.float32, [RING, 8, BLOCK_D], ROWS)
    else:
        gate_f: gl.constexpr = None  # type: ignore[no-redef]
    B_f = gl.allocate_shared_memory(gl.float32, [RING, 8, N], ROWS)
    C_f = gl.allocate_shared_memory(gl.float32, [RING, 8, N], ROWS)
    at0 = gl.allocate_shared_memory(gl.float32, [RING, BLOCK_D, N], STATE)
    at2: gl.constexpr = None
    at4: gl.constexpr = None
    at6: gl.constexpr = None
    if SIZES.every <= 4:
        at4 = gl.allocate_shared_memory(gl.float32, [RING, BLOCK_D, N], STATE)
    if SIZES.every <= 2:
        at2 = gl.allocate_shared_memory(gl.float32, [RING, BLOCK_D, N], STATE)
        at6 = gl.allocate_shared_memory(gl.float32, [RING, BLOCK_D, N], STATE)
    # The ring of results, of one block.
    y_f = gl.allocate_shared_memory(gl.float32, [2, 4, N // 8, BLOCK_D], PARTS)
    ddx_f = gl.allocate_shared_memory(gl.float32, [2, 4, N // 8, BLOCK_D], PARTS)
    dlog_f = gl.allocate_shared_memory(gl.float32, [2, 4, N // 8, BLOCK_D], PARTS)
    sums_f = gl.allocate_shared_memory(gl.float32, [2, 2 * BLOCK_D, N], STATE)
    groups_full = barriers(2 if SIZES.extra > 1 else 1, 1)
    results = ring_of(Results(y_f, ddx_f, dlog_f, sums_f), 1, 1)

    given = Inputs(dy, x, dt, z, B, C)
    raw = Inputs(dy_s, x_s, dt_s, z_s, B_s, C_s)
    steps = Group(delta_f, x_f, dx_f, gy_f, B_f, C_f, gate_f)
    groups = Ring(Groups(steps, Entering(at0, at2, at4, at6)), groups_full, barriers(RING, 1))
    A_ptr += d0 * N
    offsets = StateOffsets(state * N, leaving * N, (piece * total + d0) * N)
    is_first, is_last = span.part == 0, span.part == last_span(span.whole, lengths.span, SIZES.chunk)
    saved = states_ptr + span.slot * (total * N) + d0 * N
    length = span.length
    gl.warp_specialize(
        [
            (walk_back, (A_ptr, pointers, offsets, total, is_first, is_last, length, groups, results, SIZES)),
            (make, (given, A_ptr, dt_bias_ptr, d0, saved, total, length, raw, kept, groups, SIZES, DT_SOFTPLUS)),
            (finish, (D_ptr, gradients, d0, piece, row, length, total, groups, results, SIZES, DT_SOFTPLUS)),
        ],
        [WARPS, WARPS],
        [SIZES.make_registers, SIZES.finish_registers],
    )

    if cu_seqlens_ptr is not None:
        if span.part == 0:
            line = d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, vector_layout(BLOCK_D, WARPS)))
            fill_outside(gradients.dx_ptr, span, lengths, total, line)
            fill_outside(gradients.ddt_ptr, span, lengths, total, line)
            fill_outside(gradients.dz_ptr, span, lengths, total, line)
            pair = span.block * (2 * N) + gl.arange(0, 2 * N, gl.SliceLayout(0, tile_layout(N, 4, WARPS)))
            fill_outside(gradients.dBC_partial_ptr, span, lengths, blocks * 2 * N, pair)
            own = d0 * N + state_offsets(BLOCK_D, N, own_layout(BLOCK_D, N, WARPS))
            fill_slots(pointers.dA_partial_ptr, span, lengths, total * N, own, SIZES.piece)
            fill_slots(gradients.dD_partial_ptr, span, lengths, total, line, SIZES.piece)
            fill_slots(gradients.ddt_bias_partial_ptr, span, lengths, total, line, SIZES.piece)
