"""Rows of q and k with the decays of their channels, and what pairs of steps have in common. Symbols: ../../README.md.

By levels: a product for all pairs of steps is added to the sums of the levels below, in which then only the pairs of
this level, and of those below, are kept. On a level a row is in the left operand as target, or in the right one as
source, and 0 in the other.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import bounds_of, load_rows, owner_of, rows_at
from retrograd.core.kernels.warpgroups import column_order

from ...device import log_decays
from ..arrays import Walks
from ..blocks import UNIT, C, K
from .blocks import PLANES, ROWS, WIDE_WARPS, in_roles, running_sums, toward_middle

LEVELS = gl.constexpr(6)
PAIRS = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, WIDE_WARPS.value // 8], instr_shape=[16, 512 // WIDE_WARPS.value, 16]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [WIDE_WARPS.value], [0]))


@gluon.jit
def pairs_of(q, k, sums, ends, targets, other_targets, sources, other_sources):
    """(2 C, C): the products of keys with earlier keys, and of queries with earlier keys, with decays.

    targets (2 C, K), sources (C, K): shared memory, by turns.
    """
    DTYPE: gl.constexpr = sources.dtype
    t = gl.arange(0, 2 * C, gl.SliceLayout(1, PAIRS))[:, None] & (C - 1)
    s = gl.arange(0, C, gl.SliceLayout(0, PAIRS))[None, :]
    x = gl.zeros([2 * C, C], gl.float32, PAIRS)
    of_keys, of_queries, of_sources = in_roles(k, q, toward_middle(sums, ends, 0), 0, DTYPE)
    for level in gl.static_range(LEVELS):
        # In memory of their own: two parts of one buffer have a barrier between them.
        left = targets if level % 2 == 0 else other_targets
        right = sources if level % 2 == 0 else other_sources
        left.store(gl.reshape(gl.join(of_keys, of_queries).permute(2, 0, 1), [2 * C, K]))
        right.store(of_sources)
        fence_async_shared()
        block_barrier()
        x = warpgroup_mma(left, right.permute((1, 0)), x, is_async=True)
        if level + 1 < LEVELS:
            of_keys, of_queries, of_sources = in_roles(k, q, toward_middle(sums, ends, level + 1), level + 1, DTYPE)
        x = warpgroup_mma_wait(0, deps=[x])
        if level + 1 < LEVELS:
            x = gl.where((t ^ s) >> (level + 1) == 0, x, 0.0)
    return x


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
    beta in column order, and beta. Forward, systems (slots H C, C), fp32: tril(KK beta_s, -1), and scores: M = scale tril(QK beta_s). Backward,
    sums (slots, H, C, K), fp32: y, in base 2.
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
    j = gl.arange(0, C, gl.SliceLayout(1, ROWS))
    c = gl.arange(0, K, gl.SliceLayout(0, ROWS))
    t = step + j
    live = (t >= 0) & (t < length)
    group = head // (H // call.G)
    log = log_decays(load_rows(rows_at(g, row, first, head, UNIT), t, c, live, K, UNIT))
    k_tile = load_rows(rows_at(k, row, first, group, UNIT), t, c, live, K, UNIT).to(gl.float32)
    q_tile = load_rows(rows_at(q, row, first, group, UNIT), t, c, live, K, UNIT).to(gl.float32)
    beta_rows = rows_at(beta, row, first, head, 1)
    sums = running_sums(log, ends, starts)
    of_head = gl.cast(slot, gl.int64) * H + head
    if sums_ptr is not None:
        gl.store(sums_ptr + of_head * (C * K) + ((j * K)[:, None] + c[None, :]), sums)
    at = ((row * call.T + first + step) * H + head) * K + ((j * (H * K))[:, None] + c[None, :])
    mask = live[:, None] & (c >= 0)[None, :]
    grow = ex2(sums)
    gl.store(q_grow_ptr + at, (q_tile * grow).to(DTYPE), mask=mask)
    gl.store(k_grow_ptr + at, (k_tile * grow).to(DTYPE), mask=mask)
    end = ends.index(WIDE_WARPS - 1)
    rest = ex2(end.load(gl.SliceLayout(0, ROWS))[None, :] - sums)
    gl.store(k_rest_ptr + at, (k_tile * rest).to(DTYPE), mask=mask)
    own_ptr = planes_ptr + of_head * (PLANES * C)
    i = gl.arange(0, C, LINE)
    rates = rates_of(beta_rows, step, length, LINE)
    gl.store(own_ptr + K + column_order(i, C), rates)
    gl.store(own_ptr + K + C + i, rates)
    i = gl.arange(0, K, LINE)
    gl.store(own_ptr + column_order(i, K), ex2(end.load(LINE)))
    if FORWARD:
        TARGETS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * C, K], DTYPE)
        SOURCES: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, K], DTYPE)
        targets = gl.allocate_shared_memory(DTYPE, [2 * C, K], TARGETS)
        other_targets = gl.allocate_shared_memory(DTYPE, [2 * C, K], TARGETS)
        sources = gl.allocate_shared_memory(DTYPE, [C, K], SOURCES)
        other_sources = gl.allocate_shared_memory(DTYPE, [C, K], SOURCES)
        own = gl.allocate_shared_memory(gl.float32, [2 * C], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        own.slice(C, C).store(gl.sum(q_tile * k_tile, 1))
        x = pairs_of(q_tile, k_tile, sums, ends, targets, other_targets, sources, other_sources)
        u = gl.arange(0, 2 * C, gl.SliceLayout(1, PAIRS))
        s = gl.arange(0, C, gl.SliceLayout(0, PAIRS))
        x = gl.where(u[:, None] - C == s[None, :], own.load(gl.SliceLayout(1, PAIRS))[:, None], x)
        x = x * rates_of(beta_rows, step, length, gl.SliceLayout(0, PAIRS))[None, :]
        at = (u * C)[:, None] + s[None, :]
        gl.store(systems_ptr + of_head * (C * C) + at, x, mask=(u < C)[:, None] & (s >= 0)[None, :])
        scores = (x * call.scale).to(DTYPE)
        gl.store(scores_ptr + (of_head - 1) * (C * C) + at, scores, mask=(u >= C)[:, None] & (s >= 0)[None, :])
