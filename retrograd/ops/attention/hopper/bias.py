"""Attention on Hopper: a bias whose strides no tensor descriptor can have is copied. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous


@triton.jit(do_not_specialize=["sizes"])
def copy_bias(bias, padded_bias_ptr, sizes, ROWS: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr):
    """Copy a tile of ROWS queries and KEYS keys of a head's bias. What is after the keys of a row is not read."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    across = tl.cdiv(sizes.keys, KEYS)
    down = tl.cdiv(sizes.queries, ROWS)
    tile, row = tl.program_id(0) % (across * down), tl.program_id(0) // (across * down)
    i = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    j = (tile % across * KEYS + tl.arange(0, KEYS)).to(tl.int64)[None, :]
    batch, head = (row // sizes.heads).to(tl.int64), (row % sizes.heads).to(tl.int64)
    there = (i < sizes.queries) & (j < sizes.keys)
    own = bias.pointer + batch * bias.batch + head * bias.head
    copied = tl.load(own + i * bias.query + j * bias.key, mask=there, other=0.0)
    first = padded_bias_ptr + row.to(tl.int64) * sizes.queries * sizes.pitch
    tl.store(first + i * sizes.pitch + j, copied, mask=there)
