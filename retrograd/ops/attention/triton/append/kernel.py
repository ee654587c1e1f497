"""The kernel of `step.Append`: a launch for rotation, caches and boundaries, which are some thirty operations else."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, rounded_product, wait_for_previous


@triton.jit
def load_rotated(at, cos_at, sin_at, SIZES: tl.constexpr, INTERLEAVED: tl.constexpr):
    """A head's channels, rotated, in fp32; rounded as `core.torch.rotary.rotated`, where nothing is fused."""
    D: tl.constexpr = SIZES.D
    R: tl.constexpr = SIZES.R
    d = tl.arange(0, SIZES.BLOCK)
    x = tl.load(at + d, mask=d < D, other=0.0).to(tl.float32)
    if R > 0:
        if INTERLEAVED:
            pair, second, other = d // 2, d % 2 == 1, d ^ 1
        else:
            pair, second, other = d % R, d >= R, tl.where(d < R, d + R, d - R)
        turned = d < 2 * R
        cos = tl.load(cos_at + pair, mask=turned, other=1.0)
        sin = tl.load(sin_at + pair, mask=turned, other=0.0)
        y = tl.load(at + other, mask=turned, other=0.0).to(tl.float32)
        y = rounded_product(y, sin)
        x = tl.where(turned, rounded_product(x, cos) + tl.where(second, y, -y), x)
    return x


@triton.jit(do_not_specialize=["q", "k", "v", "batch", "capacity"])
def append(
    q,
    k,
    v,
    steps_ptr,
    cos_ptr,
    sin_ptr,
    cache_k_ptr,
    cache_v_ptr,
    rotated_ptr,
    after_ptr,
    bounds_q_ptr,
    bounds_k_ptr,
    batch,
    capacity,
    heads,
    SIZES: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a head of queries, or one of keys and values, of a row. A query without a slot becomes NaN."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    D: tl.constexpr = SIZES.D
    V: tl.constexpr = SIZES.V
    R: tl.constexpr = SIZES.R
    H, G = heads.H, heads.G
    row = tl.program_id(0) // (H + G)
    number = tl.program_id(0) % (H + G)
    wide_row = tl.cast(row, tl.int64)
    steps = tl.load(steps_ptr + row)
    full = steps >= capacity
    slot = tl.minimum(steps, capacity - 1)
    cos_at, sin_at = cos_ptr, sin_ptr
    if R > 0:
        cos_at += slot * R
        sin_at += slot * R
    d = tl.arange(0, SIZES.BLOCK)
    if number < H:
        at = q.pointer + wide_row * q.batch + number * q.head
        x = load_rotated(at, cos_at, sin_at, SIZES, INTERLEAVED)
        x = tl.where(full, float("nan"), x).to(rotated_ptr.dtype.element_ty)
        tl.store(rotated_ptr + (wide_row * H + number) * D + d, x, mask=d < D)
    else:
        group = number - H
        to = (wide_row * capacity + slot) * G + group
        at = k.pointer + wide_row * k.batch + group * k.head
        x = load_rotated(at, cos_at, sin_at, SIZES, INTERLEAVED).to(cache_k_ptr.dtype.element_ty)
        tl.store(cache_k_ptr + to * D + d, x, mask=d < D)
        c = tl.arange(0, SIZES.BLOCK_V)
        value = tl.load(v.pointer + wide_row * v.batch + group * v.head + c, mask=c < V)
        tl.store(cache_v_ptr + to * V + c, value, mask=c < V)
    if number == 0:
        tl.store(after_ptr + row, steps + 1)
        first = row * capacity
        tl.store(bounds_q_ptr + 2 * row, row)
        tl.store(bounds_q_ptr + 2 * row + 1, row + 1)
        tl.store(bounds_k_ptr + 2 * row, first)
        tl.store(bounds_k_ptr + 2 * row + 1, first + slot + 1)
        if row == batch - 1:  # an empty sequence after the last slots
            for i in tl.static_range(2):
                tl.store(bounds_q_ptr + 2 * batch + i, batch)
                tl.store(bounds_k_ptr + 2 * batch + i, batch * capacity)
