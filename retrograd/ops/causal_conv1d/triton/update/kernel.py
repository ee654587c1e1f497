# mypy: ignore-errors
"""A step of generation in one launch, with the bits of `forward_channels` and `final_states`."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..forward import convolve, line_of, load_filters, sigmoid, tile_channels, tile_of_program


@triton.jit(do_not_specialize=["x", "weight", "bias"])
def update(
    x,
    weight,
    bias,
    state_ptr,
    y_ptr,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a channel of a row for each of its threads, which overwrites what it alone has read."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    D: tl.constexpr = SIZES.channels
    W: tl.constexpr = SIZES.taps
    row, _, block = tile_of_program(1, D, BLOCK_D)
    d, mask = tile_channels(block, D, 1, BLOCK_D)
    filters = load_filters(weight, bias, d, mask, W)
    at = row.to(tl.int64) * D + d
    state = state_ptr + at * (W - 1)
    window = ()
    for j in tl.static_range(W - 1):
        # 0 is added here and below because `load_past` does so: it makes 0 of -0.
        window += (tl.load(state + j, mask=mask, other=0.0).to(tl.float32) + 0.0,)
    window += (tl.load(line_of(x, row, d).pointer, mask=mask, other=0.0).to(tl.float32),)
    value = convolve(filters, window)
    if ACTIVATION.silu:
        value *= sigmoid(value, ACTIVATION.fast)
    tl.store(y_ptr + at, value.to(y_ptr.dtype.element_ty), mask=mask)
    for j in tl.static_range(W - 1):
        tl.store(state + j, (window[j + 1] + 0.0).to(state_ptr.dtype.element_ty), mask=mask)
