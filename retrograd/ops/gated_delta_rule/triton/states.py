"""What goes in sequence: the state that enters every block, and the gradient of the one that leaves it.

Symbols: ../README.md. States are (V, K); a program has BLOCK_V channels of a head's values, which do not see one
another, and all of K. Products are transposed, (V, steps), so that one's result is the next one's left operand.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, first_slot, load_rows, owner_of, rows_at

from ..device import offsets_of
from .blocks import add_product, load_state, pairs_at, product, product_by_rows, states_at, vectors_at


@triton.jit(do_not_specialize=["k", "v", "call"])
def forward_states(
    k,
    v,
    k_rest_ptr,
    vectors_ptr,
    sums_ptr,
    inverse_ptr,
    start_ptr,
    cu_seqlens_ptr,
    entering_ptr,
    written_ptr,
    last_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    KEEP: tl.constexpr,
    FROM_KEPT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """entering (slots, H, V, K), the state before every block; written (B T, H, V), what is written, before beta: D.

    The last state is stored. FROM_KEPT: a program for every kept state, of every KEEP steps, from it up to the next.
    With a decay for each channel there are sums and k_rest of `channel_rows`, and k is its k_grow.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    C: tl.constexpr = SIZES.C
    BLOCK_K: tl.constexpr = SIZES.BLOCK_K
    BLOCK_V: tl.constexpr = SIZES.BLOCK_V
    V_BLOCKS: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DTYPE: tl.constexpr = OPERANDS.DTYPE
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    c = tl.arange(0, BLOCK_K)
    v_columns = tl.program_id(0) % V_BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(0) // V_BLOCKS % H
    part = tl.program_id(0) // V_BLOCKS // H
    begin = 0
    if FROM_KEPT:
        number, begin = owner_of(part, sequences, KEEP)
    else:
        number = part
    row, first, length = bounds_of(number, sequences)
    slot = first_slot(number, first, sequences, C)
    end = length
    if FROM_KEPT:
        end = tl.where(begin < 0, begin, tl.minimum(length, begin + KEEP))
    in_tile = (v_columns < V)[:, None] & (c < K)[None, :]
    k_rows = rows_at(k, row, first, head // (H // call.G), SIZES.K_UNIT)
    v_rows = rows_at(v, row, first, head, SIZES.V_UNIT)
    j = tl.arange(0, C)

    state = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    if start_ptr is not None:
        there = begin < end if FROM_KEPT else True
        state = load_state(start_ptr, part, head, H, v_columns, c, there, SIZES).to(tl.float32)
    for i in tl.range(tl.cdiv(tl.maximum(end - begin, 0), C), num_stages=SIZES.STAGES):
        block = begin // C + i
        low = state.to(DTYPE)
        tl.store(states_at(entering_ptr, slot + block, head, H, v_columns, c, SIZES), low, mask=in_tile)
        t = block * C + j
        live = t < length
        k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT)
        v_tile = load_rows(v_rows, t, v_columns, live, V, SIZES.V_UNIT)
        T = tl.load(inverse_ptr + pairs_at(slot + block, head, H, C))
        at = vectors_ptr + vectors_at(slot + block, head, H, C)
        beta = tl.load(at + C + j)
        predicted = product(low, tl.trans(k_tile), OPERANDS)
        if sums_ptr is None:
            sums = tl.load(at + j)
            last = tl.load(at + C - 1)
            predicted *= tl.exp2(sums)[None, :]
        D = product(tl.trans(v_tile).to(tl.float32) - predicted, tl.trans(T), OPERANDS)
        at = written_ptr + offsets_of(row * call.T + first + t, head, H, v_columns, V)
        tl.store(at, tl.trans(D.to(DTYPE)), mask=live[:, None] & (v_columns < V)[None, :])
        if sums_ptr is None:
            D *= (tl.exp2(last - sums) * beta)[None, :]
            state = add_product(D, k_tile, state * tl.exp2(last), OPERANDS)
        else:
            at = offsets_of(row * call.T + first + t, head, H, c, K)
            k_tile = tl.load(k_rest_ptr + at, mask=live[:, None] & (c < K)[None, :], other=0.0)
            decay = end_decays(sums_ptr, slot + block, head, H, c, SIZES)
            state = add_product(D * beta[None, :], k_tile, state * decay[None, :], OPERANDS)
    if last_ptr is not None:
        tl.store(states_at(last_ptr, number, head, H, v_columns, c, SIZES), state, mask=in_tile)


@triton.jit(do_not_specialize=["q", "k", "dout", "call"])
def backward_states(
    q,
    k,
    dout,
    k_rest_ptr,
    vectors_ptr,
    sums_ptr,
    inverse_ptr,
    scores_ptr,
    start_ptr,
    cu_seqlens_ptr,
    leaving_ptr,
    dv_ptr,
    last_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """leaving (slots, H, V, K), the gradient of the state after every block, and dv (B T, H, V), from the last step on.

    It begins with the gradient of the final state; the last one is that of the initial state. With a decay for each
    channel as in `forward_states`, and q is q_grow.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    C: tl.constexpr = SIZES.C
    BLOCK_K: tl.constexpr = SIZES.BLOCK_K
    BLOCK_V: tl.constexpr = SIZES.BLOCK_V
    V_BLOCKS: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DTYPE: tl.constexpr = OPERANDS.DTYPE
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    c = tl.arange(0, BLOCK_K)
    v = tl.program_id(0) % V_BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(0) // V_BLOCKS % H
    number = tl.program_id(0) // V_BLOCKS // H
    row, first, length = bounds_of(number, sequences)
    slot = first_slot(number, first, sequences, C)
    in_tile = (v < V)[:, None] & (c < K)[None, :]
    q_rows = rows_at(q, row, first, head // (H // call.G), SIZES.K_UNIT)
    k_rows = rows_at(k, row, first, head // (H // call.G), SIZES.K_UNIT)
    do_rows = rows_at(dout, row, first, head, SIZES.V_UNIT)
    j = tl.arange(0, C)

    gradient = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    if start_ptr is not None:
        gradient = load_state(start_ptr, number, head, H, v, c, True, SIZES)
    blocks = tl.cdiv(length, C)
    for i in tl.range(blocks, num_stages=SIZES.STAGES):
        block = blocks - 1 - i
        low = gradient.to(DTYPE)
        tl.store(states_at(leaving_ptr, slot + block, head, H, v, c, SIZES), low, mask=in_tile)
        t = block * C + j
        live = t < length
        q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT)
        k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT)
        do = tl.trans(load_rows(do_rows, t, v, live, V, SIZES.V_UNIT))
        T = tl.load(inverse_ptr + pairs_at(slot + block, head, H, C))
        scores = tl.load(scores_ptr + pairs_at(slot + block, head, H, C))
        at = vectors_ptr + vectors_at(slot + block, head, H, C)
        beta = tl.load(at + C + j)
        if sums_ptr is None:
            sums = tl.load(at + j)
            last = tl.load(at + C - 1)
            grow = tl.exp2(sums)
            decay = tl.exp2(last)
            dD = product_by_rows(low, k_tile, OPERANDS) * (tl.exp2(last - sums) * beta)[None, :]
        else:
            at = offsets_of(row * call.T + first + t, head, H, c, K)
            rest_tile = tl.load(k_rest_ptr + at, mask=live[:, None] & (c < K)[None, :], other=0.0)
            grow = tl.full([C], 1.0, tl.float32)
            decay = end_decays(sums_ptr, slot + block, head, H, c, SIZES)[None, :]
            dD = product_by_rows(low, rest_tile, OPERANDS) * beta[None, :]
        dv = product(add_product(do, scores, dD, OPERANDS), T, OPERANDS)
        at = dv_ptr + offsets_of(row * call.T + first + t, head, H, v, V)
        tl.store(at, tl.trans(dv.to(DTYPE)), mask=live[:, None] & (v < V)[None, :])
        do = do.to(tl.float32) * (grow * call.scale)[None, :]
        gradient = add_product(do, q_tile, gradient * decay, OPERANDS)
        gradient = add_product(dv * -grow[None, :], k_tile, gradient, OPERANDS)
    if last_ptr is not None:
        tl.store(states_at(last_ptr, number, head, H, v, c, SIZES), gradient, mask=in_tile)


@triton.jit
def end_decays(sums_ptr, slot, head, heads, c, SIZES: tl.constexpr):
    """The decay of a whole block for each channel, from the last of its sums."""
    at = ((tl.cast(slot, tl.int64) * heads + head) * SIZES.C + SIZES.C - 1) * SIZES.K
    return tl.exp2(tl.load(sums_ptr + at + c, mask=c < SIZES.K, other=0.0))
