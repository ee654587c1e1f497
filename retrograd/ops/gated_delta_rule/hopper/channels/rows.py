"""Rows of q and k with the decays of their channels, and what pairs of steps have in common. Symbols: ../../README.md.

By levels: half of a block's steps are targets on a level, the others sources, and one product is of the targets of k
and of q with the sources. It goes to shared memory, where a level overwrites what the levels below have left for its
pairs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import bounds_of, owner_of, rows_at
from retrograd.core.kernels.warpgroups import column_order

from ...device import log_decays
from ..arrays import Walks
from ..blocks import UNIT, C, K
from .blocks import PLANES, ROWS, WIDE_WARPS, by_role, decayed, log_toward_middle, pairs_from, put_pairs, running_sums

LEVELS = gl.constexpr(6)
PAIRS = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, WIDE_WARPS.value // 4], instr_shape=[16, 16, 16])
)
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [WIDE_WARPS.value], [0]))


@gluon.jit
def put_products(q, k, sums, ends, memory, operands, other_operands):
    """The products of keys and of queries with earlier keys, with decays, to shared memory: see `put_pairs`.

    operands (2 C, K): shared memory, two by turns.
    """
    x = gl.zeros([C, C // 2], gl.float32, PAIRS)
    for level in gl.static_range(LEVELS):
        # In memory of their own: two parts of one buffer have a barrier between them.
        own = operands if level % 2 == 0 else other_operands
        of_k, of_q = decayed(k, q, log_toward_middle(sums, ends, level))
        own.store(by_role(of_k, of_q, level))
        fence_async_shared()
        block_barrier()
        x = warpgroup_mma(own.slice(C, C), own.slice(0, C // 2).permute((1, 0)), x, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, deps=[x])
        put_pairs(memory, x, level)
    block_barrier()


@gluon.jit
def tile_of(rows, step, live, j, c):
    """A block's rows (C, K), from `rows_at`; zeros in steps that do not live."""
    at = rows.pointer + gl.cast(step, gl.int64) * rows.step * UNIT
    return gl.load(at + (j * (rows.step * UNIT) + c), mask=live, other=0.0)


@gluon.jit
def rates_of(rows, step, length, LAYOUT: gl.constexpr):
    """beta of a block's steps, 0 outside of the sequence."""
    t = step + gl.arange(0, C, LAYOUT)
    x = gl.load(rows.pointer + t.to(gl.int64) * rows.step, mask=(t >= 0) & (t < length), other=0.0)
    return x.to(gl.float32)


@gluon.jit(do_not_specialize=["q", "k", "g", "beta", "call"])
def rows(
    q,
    k,
    g,
    beta,
    cu_seqlens_ptr,
    sums_ptr,
    q_grow_ptr,
    k_grow_ptr,
    k_rest_ptr,
    planes_ptr,
    systems_ptr,
    scores_ptr,
    call,
    OVERLAP: gl.constexpr,
):
    """A program takes a block of C steps and a head.

    q_grow, k_grow, k_rest (B T, H, K): e^y q, e^y k, e^(y_end - y) k. planes (slots, H, 4, C), fp32: e^y_end (K,) and
    beta in column order, and beta. Forward, systems (slots H C, C), fp32: tril(KK beta_s, -1), and scores: M = scale
    tril(QK beta_s). Backward, sums (slots, H, C, K), fp32: y, in base 2.
    """
    DTYPE: gl.constexpr = q_grow_ptr.dtype.element_ty
    FORWARD: gl.constexpr = scores_ptr is not None
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    ends = gl.allocate_shared_memory(gl.float32, [WIDE_WARPS, K], FLAT)
    starts = gl.allocate_shared_memory(gl.float32, [WIDE_WARPS, K], FLAT)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    H = call.H
    walks = Walks(call.T, call.sequences, H, call.G, cu_seqlens_ptr)
    head = gl.program_id(0) % H
    slot = gl.program_id(0) // H
    number, step = owner_of(slot, walks, C)
    row, first, length = bounds_of(number, walks)
    j = gl.arange(0, C, gl.SliceLayout(1, ROWS))[:, None]
    c = gl.arange(0, K, gl.SliceLayout(0, ROWS))[None, :]
    live = (step + j >= 0) & (step + j < length) & (c >= 0)  # (C, K)
    group = head // (H // call.G)
    log = log_decays(tile_of(rows_at(g, row, first, head, UNIT), step, live, j, c))
    k_tile = tile_of(rows_at(k, row, first, group, UNIT), step, live, j, c)
    q_tile = tile_of(rows_at(q, row, first, group, UNIT), step, live, j, c)
    beta_rows = rows_at(beta, row, first, head, 1)
    sums = running_sums(log, ends, starts)
    of_head = gl.cast(slot, gl.int64) * H + head
    if sums_ptr is not None:
        gl.store(sums_ptr + of_head * (C * K) + (j * K + c), sums)
    start = ((row * call.T + first + step) * H + head) * K
    at = j * (H * K) + c
    grow = ex2(sums)
    gl.store(q_grow_ptr + start + at, (q_tile.to(gl.float32) * grow).to(DTYPE), mask=live)
    gl.store(k_grow_ptr + start + at, (k_tile.to(gl.float32) * grow).to(DTYPE), mask=live)
    LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    end = ends._reinterpret(gl.float32, [WIDE_WARPS * K], LINES).slice((WIDE_WARPS - 1) * K, K)
    rest = ex2(end.load(gl.SliceLayout(0, ROWS))[None, :] - sums)
    gl.store(k_rest_ptr + start + at, (k_tile.to(gl.float32) * rest).to(DTYPE), mask=live)
    own_ptr = planes_ptr + of_head * (PLANES * C)
    i = gl.arange(0, C, LINE)
    rates = rates_of(beta_rows, step, length, LINE)
    gl.store(own_ptr + K + column_order(i, C), rates)
    gl.store(own_ptr + K + C + i, rates)
    i = gl.arange(0, K, LINE)
    gl.store(own_ptr + column_order(i, K), ex2(end.load(LINE)))
    if FORWARD:
        WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * C, K], DTYPE)
        operands = gl.allocate_shared_memory(DTYPE, [2 * C, K], WIDE)
        other_operands = gl.allocate_shared_memory(DTYPE, [2 * C, K], WIDE)
        pairs = gl.allocate_shared_memory(gl.float32, [2 * C * C], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        own = gl.allocate_shared_memory(gl.float32, [C], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        # A branch, so that no level is begun with the rows above: there are no registers for that.
        if step < length:
            own.store(gl.sum(q_tile.to(gl.float32) * k_tile.to(gl.float32), 1))
            put_products(q_tile, k_tile, sums, ends, pairs, operands, other_operands)
        block_barrier()
        of_keys = pairs_from(pairs, 0)
        of_queries = pairs_from(pairs, 1)
        TARGET: gl.constexpr = gl.SliceLayout(1, of_keys.type.layout)
        SOURCE: gl.constexpr = gl.SliceLayout(0, of_keys.type.layout)
        u = gl.arange(0, C, TARGET)[:, None]
        s = gl.arange(0, C, SOURCE)[None, :]
        rates = rates_of(beta_rows, step, length, SOURCE)[None, :]
        at = of_head * (C * C) + (u * C + s)
        # Slots of no steps are saved, too: nobody wrote their pairs to shared memory.
        there = step < length
        gl.store(systems_ptr + at, gl.where((u > s) & there, of_keys * rates, 0.0))
        of_queries = gl.where(u > s, of_queries, own.load(TARGET)[:, None])
        of_queries = gl.where((u >= s) & there, of_queries, 0.0)
        gl.store(scores_ptr + at, (of_queries * rates * call.scale).to(DTYPE))
