"""The gradients of q, k and g, and that of beta in parts, where each channel has a decay of its own, for Hopper.

Symbols: ../../README.md, "By levels". A program takes a span of blocks of a sequence and a key head. All of it is
transposed, (channels, steps), a warpgroup for 64 channels: then the rows of a level are left operands in registers, and
a block's pairs right ones in shared memory, masked to each level. The steps of a block come in two halves of 32: the
pairs of the highest level lie between them, all others within them.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import block_barrier, ex2, tma_load
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import acquire, full_and_empty, release, wait_full
from retrograd.core.kernels.sequences import rows_at
from retrograd.core.kernels.warpgroups import clear_rows, in_fp32

from ..arrays import Walks
from ..blocks import HALF, UNIT, C, K, slot_entering
from ..grads import span_of
from .blocks import PLANES
from .halves import (
    BY_WARP,
    LEFT,
    LEVELS,
    STEP,
    STEPS,
    WARPS,
    X,
    before_step,
    decay_of,
    from_step_on,
    in_16_bits,
    last_of,
    part_of,
    store_half,
    toward_middle,
)
from .tiles import TILES, divide_tiles, pair_tiles

PARTS = gl.constexpr(8)  # of the gradient of beta: the channels of a warp


class Options(NamedTuple):
    """GROUP: heads of a key head. SPAN: blocks of a program. KEPT: blocks between kept states."""

    GROUP: int
    SPAN: int
    KEPT: int


class Arrays(NamedTuple):
    """Descriptors of what the kernel reads."""

    q: Any
    k: Any
    dout: Any
    dv: Any
    written: Any
    sums: Any
    planes: Any
    kept: Any
    between: Any
    leaving: Any


class Memory(NamedTuple):
    """Shared memory of a head and block.

    rows: do and dv, as (2 halves of V, do or dv, 64, 64). entering, leaving (128, 128): states. written (2, 64, 64): D.
    q, k, sums (2, 32, 128). planes. tiles: see `pair_tiles`. own: P of a step with itself.
    early, late: rings of one stage, of states and do, dv, D, and of the rest.
    """

    rows: Any
    entering: Any
    leaving: Any
    written: Any
    q: Any
    k: Any
    sums: Any
    planes: Any
    tiles: Any
    own: Any
    early: Any
    late: Any


class Stages(NamedTuple):
    """The mbarriers of a ring."""

    full: Any
    empty: Any


class Pointers(NamedTuple):
    """What the kernel writes."""

    dq: Any
    dk: Any
    dg: Any
    parts: Any


@gluon.jit
def stage_of_one():
    """A ring of one stage."""
    full, empty = full_and_empty(1, 1)
    return Stages(full, empty)


@gluon.jit
def fetch(arrays, memory, walks, OPTIONS: gl.constexpr):
    """Copy what a head needs to shared memory, head after head, block after block."""
    GROUP: gl.constexpr = OPTIONS.GROUP
    span = span_of(walks, OPTIONS)
    EARLY: gl.constexpr = 2 * arrays.kept.block_type.nbytes + 6 * arrays.dout.block_type.nbytes
    LATE: gl.constexpr = arrays.planes.block_type.nbytes + 2 * (
        arrays.sums.block_type.nbytes + arrays.q.block_type.nbytes + arrays.k.block_type.nbytes
    )
    for i in range(span.count):
        c = span.begin + i
        for w in range(GROUP):
            n = i * GROUP + w
            h = span.group * GROUP + w
            of_head = (span.slot + c) * walks.H + h
            acquire(memory.early, n)
            ready = memory.early.full.index(0)
            mbarrier.expect(ready, EARLY)
            for part in gl.static_range(2):
                tma_load(arrays.dout, [c * C, h * K + part * HALF], ready, memory.rows.index(2 * part))
                tma_load(arrays.dv, [c * C, h * K + part * HALF], ready, memory.rows.index(2 * part + 1))
                tma_load(arrays.written, [c * C, h * K + part * HALF], ready, memory.written.index(part))
            if c % OPTIONS.KEPT == 0:
                own = slot_entering(span.kept, span.slot, c, OPTIONS.KEPT, True)
                tma_load(arrays.kept, [(own * walks.H + h) * K, 0], ready, memory.entering.index(0))
            else:
                own = slot_entering(span.kept, span.slot, c, OPTIONS.KEPT, False)
                tma_load(arrays.between, [(own * walks.H + h) * K, 0], ready, memory.entering.index(0))
            tma_load(arrays.leaving, [of_head * K, 0], ready, memory.leaving.index(0))
            acquire(memory.late, n)
            ready = memory.late.full.index(0)
            mbarrier.expect(ready, LATE)
            tma_load(arrays.planes, [of_head * (PLANES * C)], ready, memory.planes)
            for part in gl.static_range(2):
                tma_load(arrays.sums, [of_head * C + part * STEPS, 0], ready, memory.sums.index(part))
                tma_load(arrays.k, [c * C + part * STEPS, 0], ready, memory.k.index(part))
                tma_load(arrays.q, [c * C + part * STEPS, 0], ready, memory.q.index(part))


@gluon.jit
def half_of(memory, h):
    """16-bit rows of half of the steps, transposed."""
    own = part_of(memory, h).permute((1, 0)).load(LEFT)
    return in_fp32(gl.convert_layout(own, X, assert_trivial=True))


@gluon.jit
def sums_of_half(memory, h):
    """The sums of log decays (channel, step)."""
    return part_of(memory.sums, h).permute((1, 0)).load(X)


@gluon.jit
def line_of(memory, COUNT: gl.constexpr, n):
    """(step,): the n-th 32 of so many numbers one after another."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return part_of(memory._reinterpret(gl.float32, [COUNT // STEPS, STEPS], FLAT), n).load(STEP)


@gluon.jit
def beta_of(memory, h):
    """(step,)"""
    return line_of(memory.planes, PLANES * C, (PLANES - 1) * (C // STEPS) + h)


@gluon.jit
def through_state(state, rows, FIRST: gl.constexpr, EACH: gl.constexpr, h, zero):
    """A state (V, K) transposed times half of a block's rows transposed, begun: these are tiles FIRST, FIRST + EACH."""
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STEPS, HALF], rows.dtype)
    halves = rows._reinterpret(rows.dtype, [2 * rows.shape[0], STEPS, HALF], TILE)
    for i in gl.static_range(2):
        own = part_of(halves, 2 * (FIRST + i * EACH) + h).permute((1, 0))
        left = part_of(state).slice(i * HALF, HALF).permute((1, 0))
        if i == 0:
            x = warpgroup_mma(left, own, zero, use_acc=False, is_async=True)
        else:
            x = warpgroup_mma(left, own, x, is_async=True)
    return x


@gluon.jit
def of_states(memory):
    """(channel,): the sum over V of an entering state's elements times those of the gradient of the leaving one."""
    total = gl.zeros([K, STEPS], gl.float32, X)
    for i in gl.static_range(4):
        S = part_of(memory.entering).slice(i * STEPS, STEPS).permute((1, 0)).load(LEFT)
        G = part_of(memory.leaving).slice(i * STEPS, STEPS).permute((1, 0)).load(LEFT)
        S, G = gl.convert_layout(S, X, assert_trivial=True), gl.convert_layout(G, X, assert_trivial=True)
        total += in_fp32(S) * in_fp32(G)
    return forget(gl.sum(total, 1))


@gluon.jit
def times_pairs(rows, tile, zero):
    """Rows (channel, step) times a tile, begun."""
    left = gl.convert_layout(rows, LEFT, assert_trivial=True)
    return warpgroup_mma(left, tile.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def by_roles(q, k, by, targets, DTYPE: gl.constexpr):
    """The rows of steps for products with P and with N, where `targets` those of targets."""
    return in_16_bits(gl.where(targets, q, k) * by, DTYPE), in_16_bits(k * by, DTYPE)


@gluon.jit
def added(dq, dk, source, inner, x, z, of_q, of_k, factors, targets):
    """With what steps on a level get from pairs by P and N: x, z; their own rows are of_q, of_k."""
    # Both sides of a pair are products of the same rounded rows: before and behind both steps they are equal.
    y = in_fp32(of_q) * x + in_fp32(of_k) * z
    # Here, and not below the products of the next level, where x and z would still be in registers.
    inner = forget(gl.where(targets, inner + y, inner - y))
    dq = forget(gl.where(targets, dq + factors * x, dq))
    dk = forget(gl.where(targets, dk + factors * z, dk))
    source = forget(gl.where(targets, source, source + factors * (x + z)))
    return dq, dk, source, inner


@gluon.jit
def between_halves(memory, dq, dk, source, inner, h, DTYPE: gl.constexpr):
    """Adds to dq, dk, `source` and decays of half h what pairs with the other half give."""
    zero = gl.zeros([K, STEPS], gl.float32, X)
    targets = h == 1
    middle = last_of(sums_of_half(memory, 0))
    factors = decay_of(sums_of_half(memory, 1 - h) - middle)
    by = factors * gl.where(targets, beta_of(memory, 1 - h), 1.0)[None, :]
    others = h == 0
    of_q, of_k = by_roles(half_of(memory.q, 1 - h), half_of(memory.k, 1 - h), by, others, DTYPE)
    x = times_pairs(of_q, part_of(memory.tiles, 6 - 2 * h), zero)
    z = times_pairs(of_k, part_of(memory.tiles, 7 - 2 * h), zero)
    factors = decay_of(sums_of_half(memory, h) - middle)
    by = factors * gl.where(targets, 1.0, beta_of(memory, h))[None, :]
    of_q, of_k = by_roles(half_of(memory.q, h), half_of(memory.k, h), by, targets, DTYPE)
    x, z = warpgroup_mma_wait(0, deps=[x, z])
    return added(dq, dk, source, inner, x, z, of_q, of_k, factors, targets)


@gluon.jit
def within_half(memory, dq, dk, source, inner, h, DTYPE: gl.constexpr):
    """The same of pairs within half h, level by level."""
    zero = gl.zeros([K, STEPS], gl.float32, X)
    s = gl.arange(0, STEPS, STEP)
    # A loop, and not its body once for each level: all of it has to fit into the cache for instructions.
    for level in range(LEVELS):
        targets = (s >> level) & 1 == 1
        factors = toward_middle(sums_of_half(memory, h), level)
        by = factors * gl.where(targets, 1.0, beta_of(memory, h))[None, :]
        targets = targets[None, :]
        of_q, of_k = by_roles(half_of(memory.q, h), half_of(memory.k, h), by, targets, DTYPE)
        tile = gl.where(level == LEVELS - 1, h, 8 + 4 * level + h)
        x = times_pairs(of_q, part_of(memory.tiles, tile), zero)
        z = times_pairs(of_k, part_of(memory.tiles, tile + 2), zero)
        x, z = warpgroup_mma_wait(0, deps=[x, z])
        dq, dk, source, inner = added(dq, dk, source, inner, x, z, of_q, of_k, factors, targets)
    return dq, dk, source, inner


@gluon.jit
def with_own(memory, dq, source, h):
    """Adds what a step's pair with itself gives to dq, and to `source`."""
    own = line_of(memory.own, 2 * C, h)
    dq += half_of(memory.k, h) * (own * beta_of(memory, h))[None, :]
    return forget(dq), forget(source + half_of(memory.q, h) * own[None, :])


@gluon.jit
def through_entering(memory, scale, h):
    """x1 and x2 of half h, and what decays have of them."""
    zero = gl.zeros([K, STEPS], gl.float32, X)
    x = through_state(memory.entering, memory.rows, 0, 2, h, zero)
    z = through_state(memory.entering, memory.rows, 1, 2, h, zero)
    grow = ex2(sums_of_half(memory, h))
    q, k = half_of(memory.q, h), half_of(memory.k, h)
    x, z = warpgroup_mma_wait(0, deps=[x, z])
    x *= grow * scale
    z *= -grow
    return forget(x), forget(z), forget(q * x + k * z)


@gluon.jit
def through_leaving(memory, h):
    """x3 of half h, and what decays have of it."""
    zero = gl.zeros([K, STEPS], gl.float32, X)
    x = through_state(memory.leaving, memory.written, 0, 1, h, zero)
    rest = ex2(last_of(sums_of_half(memory, 1)) - sums_of_half(memory, h))
    k = half_of(memory.k, h) * beta_of(memory, h)[None, :]
    x = warpgroup_mma_wait(0, deps=[x]) * rest
    return forget(x), forget(k * x)


@gluon.jit
def store_parts(memory, source, parts_ptr, h):
    """The gradient of beta of half h by warps."""
    y = half_of(memory.k, h) * source
    y = gl.sum(gl.convert_layout(gl.reshape(y, [WARPS, K // WARPS, STEPS]), BY_WARP, assert_trivial=True), 1)
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(1, BY_WARP)))[:, None]
    step = gl.arange(0, STEPS, gl.SliceLayout(0, gl.SliceLayout(1, BY_WARP)))[None, :]
    gl.store(parts_ptr + h * STEPS + warp * C + step, y)


@gluon.jit
def clear_all(ptr, span, walks, head, heads):
    """As `clear_outside`."""
    stride = heads * K
    ptr += head * K
    after = span.first + span.length
    clear_rows(ptr, stride, gl.where(span.number == 0, span.first, 0), K, WARPS)
    count = gl.where(span.number == walks.sequences - 1, walks.T - after, 0)
    clear_rows(ptr + gl.cast(after, gl.int64) * stride, stride, count, K, WARPS)


@gluon.jit
def compute(pointers, memory, scale, walks, OPTIONS: gl.constexpr):
    """All gradients."""
    DTYPE: gl.constexpr = memory.q.dtype
    GROUP: gl.constexpr = OPTIONS.GROUP
    span = span_of(walks, OPTIONS)
    H, G = walks.H, walks.G
    first = span.group * GROUP
    if walks.cu_seqlens is not None:
        if span.begin == 0:
            clear_all(pointers.dq, span, walks, span.group, G)
            clear_all(pointers.dk, span, walks, span.group, G)
            for w in range(GROUP):
                clear_all(pointers.dg, span, walks, first + w, H)
    zero = gl.zeros([K, STEPS], gl.float32, X)
    for i in range(span.count):
        c = span.begin + i
        left = span.length - c * C
        step = span.row * walks.T + span.first + c * C
        at = (step * G + span.group) * K
        dq0, dq1, dk0, dk1 = zero, zero, zero, zero
        for w in range(GROUP):
            n = i * GROUP + w
            of_head = gl.cast((span.slot + c) * H + first + w, gl.int64)
            parts = pointers.parts + of_head * (PARTS * C)
            dg_ptr = pointers.dg + (step * H + first + w) * K
            wait_full(memory.early, n)
            pair_tiles(memory, scale, DTYPE)
            divide_tiles(memory)
            both = of_states(memory)
            wait_full(memory.late, n)
            both = forget(both * ex2(gl.sum(last_of(sums_of_half(memory, 1)), 1)))
            # What is added to the gradient of all decays of a half: of the second half what decays before have of x3.
            _, x = through_leaving(memory, 0)
            others = both + gl.sum(x, 1)
            # A loop, and not its body twice: all of it has to fit into the cache for instructions.
            for part in range(2):
                h = 1 - part
                source, x = through_leaving(memory, h)
                dg = forget(before_step(x) + others[:, None])
                dq, dk, inner = through_entering(memory, scale, h)
                if part == 1:
                    fence_async_shared()
                    release(memory.early, n)
                dq, source = with_own(memory, dq, source, h)
                dq, dk, source, inner = between_halves(memory, dq, dk, source, inner, h, DTYPE)
                dq, dk, source, inner = within_half(memory, dq, dk, source, inner, h, DTYPE)
                store_parts(memory, source, parts, h)
                dk += source * beta_of(memory, h)[None, :]
                others = both + gl.sum(inner, 1)
                store_half(dg_ptr, dg + from_step_on(inner), H * K, left, h)
                if GROUP == 1:
                    store_half(pointers.dq + at, dq, G * K, left, h)
                    store_half(pointers.dk + at, dk, G * K, left, h)
                else:
                    dq0, dk0 = gl.where(h == 0, dq0 + dq, dq0), gl.where(h == 0, dk0 + dk, dk0)
                    dq1, dk1 = gl.where(h == 0, dq1, dq1 + dq), gl.where(h == 0, dk1, dk1 + dk)
            # All have read the rest, and the tiles.
            fence_async_shared()
            block_barrier()
            release(memory.late, n)
        if GROUP > 1:
            store_half(pointers.dq + at, dq0, G * K, left, 0)
            store_half(pointers.dk + at, dk0, G * K, left, 0)
            store_half(pointers.dq + at, dq1, G * K, left, 1)
            store_half(pointers.dk + at, dk1, G * K, left, 1)


@gluon.jit(do_not_specialize=["q", "k", "dout", "call"])
def grads(
    q,
    k,
    dout,
    dv_ptr,
    written_ptr,
    sums,
    planes,
    kept,
    between,
    leaving,
    cu_seqlens_ptr,
    dq_ptr,
    dk_ptr,
    dg_ptr,
    parts_ptr,
    call,
    OPTIONS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dq, dk (B T, G, K), dg (B T, H, K). parts (slots, H, 8, C): the gradient of beta by 16 channels each.

    dv, written (B T, H, V); sums (slots H C, K): y, in base 2; kept, between (see `slot_entering`, H V K):
    states that enter blocks; leaving (slots H V, K).
    """
    DTYPE: gl.constexpr = q.pointer.dtype.element_ty
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STEPS, K], DTYPE)
    STATE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([K, K], DTYPE)
    SMALL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STEPS, STEPS], DTYPE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    memory = Memory(
        rows=gl.allocate_shared_memory(DTYPE, [4, C, HALF], TILE),
        entering=gl.allocate_shared_memory(DTYPE, [1, K, K], STATE),
        leaving=gl.allocate_shared_memory(DTYPE, [1, K, K], STATE),
        written=gl.allocate_shared_memory(DTYPE, [2, C, HALF], TILE),
        q=gl.allocate_shared_memory(DTYPE, [2, STEPS, K], WIDE),
        k=gl.allocate_shared_memory(DTYPE, [2, STEPS, K], WIDE),
        sums=gl.allocate_shared_memory(gl.float32, [2, STEPS, K], gl.NVMMASharedLayout(128, 32, rank=2)),
        planes=gl.allocate_shared_memory(gl.float32, [PLANES * C], LINE),
        tiles=gl.allocate_shared_memory(DTYPE, [TILES, STEPS, STEPS], SMALL),
        own=gl.allocate_shared_memory(gl.float32, [K], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        early=stage_of_one(),
        late=stage_of_one(),
    )
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    span = span_of(walks, OPTIONS)
    steps = gl.maximum(span.length, 1)
    H = call.H
    q_rows = rows_at(q, span.row, span.first, span.group, UNIT)
    k_rows = rows_at(k, span.row, span.first, span.group, UNIT)
    dout_rows = rows_at(dout, span.row, span.first, 0, UNIT)
    values_at = (span.row * call.T + span.first) * H * K
    # Descriptors of the sequence alone: steps past its end are read as zeros.
    arrays = Arrays(
        tma.make_tensor_descriptor(q_rows.pointer, [steps, K], [q.step * UNIT, 1], [STEPS, K], WIDE),
        tma.make_tensor_descriptor(k_rows.pointer, [steps, K], [k.step * UNIT, 1], [STEPS, K], WIDE),
        tma.make_tensor_descriptor(dout_rows.pointer, [steps, H * K], [dout.step * UNIT, 1], [C, HALF], TILE),
        tma.make_tensor_descriptor(dv_ptr + values_at, [steps, H * K], [H * K, 1], [C, HALF], TILE),
        tma.make_tensor_descriptor(written_ptr + values_at, [steps, H * K], [H * K, 1], [C, HALF], TILE),
        sums,
        planes,
        kept,
        between,
        leaving,
    )
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (compute, (Pointers(dq_ptr, dk_ptr, dg_ptr, parts_ptr), memory, call.scale, walks, OPTIONS)),
            (fetch, (arrays, memory, walks, OPTIONS)),
        ],
        [1],
        [FETCH_REGISTERS],
    )
