"""Selective scan, backward, on NVIDIA GPUs since Hopper. Symbols and formulas: ../README.md.

One program walks one span of a sequence for BLOCK_D channels, from the last chunk of KEEP steps to the first. Its
warps are of three kinds, each with its own registers, that work side by side on groups of 8 steps:
    make       over (time, channel): delta, x, g_y = dy silu(z), B and C, in fp32 where they are computed with; and over
               (channel, state) the states that enter every 4 steps, from the state that was kept before the chunk
    walk_back  over (channel, state), groups from the last: states and decays again, into registers; then the adjoint
                   g <- g_y C + g;  dC += g_y h;  dB += g delta x;  g <- decay g;  dA += delta g h_before
               sums over states in the thread and by shuffles, sums over channels on the tensor cores (channel_sum.py)
    finish     over (time, channel): dx, ddt and dz from the sums over states
`steps.py` says where a group lies in shared memory. dB and dC leave as fp32 sums over the program's channels, dA, dD
and ddt_bias as sums over PIECE steps; second stages add these in a fixed order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .channel_sum import own_layout, steps_a_tile
from .finish import finish
from .make import STAGES, make
from .sequences import at_row, fill_outside, fill_places, first_place, last_span, span_of
from .steps import state_offsets, tile_layout, vector_layout
from .walk_back import walk_back


@gluon.jit(
    do_not_specialize=[
        "T", "sequences", "span", "spans",
        "dy_strides", "x_strides", "dt_strides", "z_strides", "B_strides", "C_strides",
    ]
)  # fmt: skip
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
    leaving_ptr,
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
    span,
    spans,
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
    PIECE: gl.constexpr,
    MIDDLE: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
    SPLIT: gl.constexpr,
    WARPS: gl.constexpr,
    MAKE_REGISTERS: gl.constexpr,
    FINISH_REGISTERS: gl.constexpr,
):
    """Strides and spans as in the forward pass; gradients are dense.

    leaving (sequences, spans - 1, D, N): the gradient of the state that leaves a span, but for the last (walk.py).
    dBC_partial (rows, channels / BLOCK_D, 2, N): of dC, then of dB. The other partial sums have a leading axis of
    places, one for every PIECE steps: dA_partial (places, D, N), dD_partial and ddt_bias_partial (places, D).
    """
    GROUPS: gl.constexpr = KEEP // 8
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    STATE: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
    WIDE: gl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth  # the unit of strides

    blocks = channels // BLOCK_D
    pid_d, pid_b, part, start, whole, row, length, place = span_of(T, cu_seqlens_ptr, span, spans, blocks, KEEP)
    piece = first_place(pid_b, start, T, cu_seqlens_ptr, PIECE) + part * span // (PIECE // KEEP)
    d0 = pid_d * BLOCK_D
    state = pid_b.to(gl.int64) * channels + d0  # in arrays (sequences, D)
    leaving = (pid_b.to(gl.int64) * (spans - 1) + part) * channels + d0
    dy = at_row(dy_ptr, dy_strides, pid_b, row, T, cu_seqlens_ptr, d0, WIDE)
    x = at_row(x_ptr, x_strides, pid_b, row, T, cu_seqlens_ptr, d0, WIDE)
    dt = at_row(dt_ptr, dt_strides, pid_b, row, T, cu_seqlens_ptr, d0, WIDE)
    z = (z_ptr, z_strides[1])
    B = at_row(B_ptr, B_strides, pid_b, row, T, cu_seqlens_ptr, d0 // channels_a_B * B_strides[2] * 4, 4)
    C = at_row(C_ptr, C_strides, pid_b, row, T, cu_seqlens_ptr, d0 // channels_a_C * C_strides[2] * 4, 4)

    # As they come.
    dy_s = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    x_s = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    dt_s = gl.allocate_shared_memory(dt_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    B_s = gl.allocate_shared_memory(B_ptr.dtype.element_ty, [STAGES, 8, N], ROWS)
    C_s = gl.allocate_shared_memory(C_ptr.dtype.element_ty, [STAGES, 8, N], ROWS)
    if z_ptr is not None:
        z = at_row(z_ptr, z_strides, pid_b, row, T, cu_seqlens_ptr, d0, WIDE)
        z_s = gl.allocate_shared_memory(z_ptr.dtype.element_ty, [STAGES, 8, BLOCK_D], ROWS)
    else:
        z_s: gl.constexpr = None  # type: ignore[no-redef]
    kept_s = gl.allocate_shared_memory(gl.float32, [2, BLOCK_D, N], STATE)
    # Groups of steps: delta, x, g_y, dy silu'(z), B, C, and the states that enter them and their second halves.
    delta_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, 8, BLOCK_D], ROWS)
    x_f = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [GROUPS + 1, 8, BLOCK_D], ROWS)
    gy_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, 8, BLOCK_D], ROWS)
    if dz_ptr is not None:
        gate_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, 8, BLOCK_D], ROWS)
    else:
        gate_f: gl.constexpr = None  # type: ignore[no-redef]
    B_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, 8, N], ROWS)
    C_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, 8, N], ROWS)
    entry_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, BLOCK_D, N], STATE)
    if MIDDLE:
        middle_f = gl.allocate_shared_memory(gl.float32, [GROUPS + 1, BLOCK_D, N], STATE)
    else:
        middle_f: gl.constexpr = None  # type: ignore[no-redef]
    # What the adjoint of a group leaves: three sums over states, and those over channels.
    y_f = gl.allocate_shared_memory(gl.float32, [2, 4, BLOCK_D], ROWS)
    ddx_f = gl.allocate_shared_memory(gl.float32, [2, 4, BLOCK_D], ROWS)
    dlog_f = gl.allocate_shared_memory(gl.float32, [2, 4, BLOCK_D], ROWS)
    sums_f = gl.allocate_shared_memory(gl.float32, [8 // steps_a_tile(N), BLOCK_D, N], ROWS)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [GROUPS + 1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    mbarrier.init(free, count=1)
    for i in gl.static_range(GROUPS + 1):
        mbarrier.init(empty.index(i), count=1)

    raw = (dy_s, x_s, dt_s, z_s, B_s, C_s)
    rows = (delta_f, x_f, gy_f, B_f, C_f)
    entering = (entry_f, middle_f)
    results = (y_f, ddx_f, dlog_f, sums_f)
    gl.warp_specialize(
        [
            (walk_back, (A_ptr + d0 * N, dfinal_state_ptr, leaving_ptr, dinitial_state_ptr, dA_partial_ptr,
                         state * N, leaving * N, (piece * channels + d0) * N, channels,
                         part == 0, part == last_span(whole, span, KEEP), length,
                         rows, entering, results, full, done, free, N, BLOCK_D, KEEP, PIECE, MIDDLE, SPLIT, WARPS)),
            (make, (dy, x, dt, z, B, C, A_ptr + d0 * N, dt_bias_ptr, d0,
                    states_ptr + place * (channels * N) + d0 * N, channels, length,
                    raw, kept_s, gate_f, rows, entering, full, empty,
                    N, BLOCK_D, KEEP, MIDDLE, DT_SOFTPLUS, WARPS)),
            (finish, (D_ptr, dx_ptr, ddt_ptr, dz_ptr, dBC_partial_ptr, dD_partial_ptr, ddt_bias_partial_ptr,
                      d0, piece, row, length, channels, gate_f, rows, results, done, free, empty,
                      N, BLOCK_D, KEEP, PIECE, DT_SOFTPLUS, WARPS)),
        ],
        [WARPS, WARPS],
        [MAKE_REGISTERS, FINISH_REGISTERS],
    )  # fmt: skip

    if cu_seqlens_ptr is not None:
        if part == 0:
            line = d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, vector_layout(BLOCK_D, WARPS)))
            begin = start.to(gl.int32)
            fill_outside(dx_ptr, pid_b, sequences, begin, begin + whole, T, channels, line)
            fill_outside(ddt_ptr, pid_b, sequences, begin, begin + whole, T, channels, line)
            fill_outside(dz_ptr, pid_b, sequences, begin, begin + whole, T, channels, line)
            pair = pid_d * (2 * N) + gl.arange(0, 2 * N, gl.SliceLayout(0, tile_layout(N, 4, WARPS)))
            fill_outside(dBC_partial_ptr, pid_b, sequences, begin, begin + whole, T, blocks * 2 * N, pair)
            own = d0 * N + state_offsets(BLOCK_D, N, own_layout(BLOCK_D, N, WARPS))
            fill_places(dA_partial_ptr, pid_b, sequences, begin, whole, T, channels * N, own, PIECE)
            fill_places(dD_partial_ptr, pid_b, sequences, begin, whole, T, channels, line, PIECE)
            fill_places(ddt_bias_partial_ptr, pid_b, sequences, begin, whole, T, channels, line, PIECE)
