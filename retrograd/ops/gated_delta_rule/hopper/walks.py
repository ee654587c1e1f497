"""Where a walk over a sequence's blocks begins, and what it leaves: the same for both kinds of decay, and back.

A program walks with half of a head's values. Symbols: ../README.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from retrograd.core.kernels.sequences import bounds_of, first_slot, owner_of
from retrograd.core.kernels.warpgroups import WARPS, clear_rows, tile_offsets

from .arrays import Walk
from .blocks import HALF, PARTS, C, K, slot_entering


@gluon.jit
def walk_of(walks, OPTIONS: gl.constexpr):
    """What a program walks over."""
    KEEP: gl.constexpr = C * OPTIONS.KEPT
    column = gl.program_id(0) % PARTS * HALF
    head = gl.program_id(0) // PARTS % walks.H
    own = gl.program_id(0) // PARTS // walks.H
    if OPTIONS.AGAIN:
        number, step = owner_of(own, walks, C * OPTIONS.AGAIN)
        row, first, length = bounds_of(number, walks)
        begin = step // C
        left = gl.where(step < 0, 0, gl.minimum(gl.maximum(length - step, 0), C * OPTIONS.AGAIN))
        count = gl.cdiv(left, C)
    else:
        number = own
        row, first, length = bounds_of(number, walks)
        begin = 0
        count = gl.cdiv(length, C)
    kept = first_slot(number, first, walks, KEEP)
    slot = first_slot(number, first, walks, C)
    return Walk(column, head, number, row, first, length, slot, begin, count, kept)


@gluon.jit
def rows_out(ptr, walk, walks, memory):
    """A descriptor of rows (B T, H, V) of the sequence alone, for `memory`: steps past its end are not written."""
    LAYOUT: gl.constexpr = memory.type.layout
    ptr += ((walk.row * walks.T + walk.first) * walks.H + walk.head) * K
    return tma.make_tensor_descriptor(ptr, [gl.maximum(walk.length, 1), K], [walks.H * K, 1], [C, HALF], LAYOUT)


@gluon.jit
def states_out(ptr, walk, H, memory, OPTIONS: gl.constexpr):
    """A descriptor of the states that leave, from `memory`: kept ones, or AGAIN the others. See `slot_entering`."""
    LAYOUT: gl.constexpr = memory.type.layout
    last = gl.maximum(gl.cdiv(walk.length, C), 1) - 1
    slots = slot_entering(0, 0, last, OPTIONS.KEPT, OPTIONS.AGAIN == 0) + 1
    own = slot_entering(walk.kept, walk.slot, 0, OPTIONS.KEPT, OPTIONS.AGAIN == 0)
    ptr += gl.cast(own * H, gl.int64) * (K * K)
    return tma.make_tensor_descriptor(ptr, [slots * H * K, K], [K, 1], [HALF, K], LAYOUT)


@gluon.jit
def begin_state(start_ptr, walk, H, STATE: gl.constexpr, OPTIONS: gl.constexpr):
    """The state that a walk begins with (values, keys): a sequence's, AGAIN a kept one, or zeros."""
    state = gl.zeros([HALF, K], gl.float32, STATE)
    if start_ptr is not None:
        there = walk.count > 0 if OPTIONS.AGAIN else True
        if there:
            of_head = (walk.kept + walk.begin // OPTIONS.KEPT if OPTIONS.AGAIN else walk.number) * H + walk.head
            at = (gl.cast(of_head, gl.int64) * K + walk.column) * K
            state = gl.load(start_ptr + at + tile_offsets(HALF, K, K, STATE)).to(gl.float32)
    return state


@gluon.jit
def end_state(last_ptr, state, walk, H, STATE: gl.constexpr):
    """Store a sequence's last state."""
    if last_ptr is not None:
        at = (gl.cast(walk.number * H + walk.head, gl.int64) * K + walk.column) * K
        gl.store(last_ptr + at + tile_offsets(HALF, K, K, STATE), state)


@gluon.jit
def clear_states(states_ptr, walk, walks, STEPS: gl.constexpr):
    """Each of packed sequences writes zeros to the kept states after its own; the first also to those before."""
    number, H = walk.number, walks.H
    for slot in range(gl.where(number == 0, 0, walk.kept), walk.kept):
        clear_rows(states_ptr + (gl.cast(slot * H + walk.head, gl.int64) * K + walk.column) * K, K, HALF, K, WARPS)
    slots = walks.T // STEPS + walks.sequences
    after = gl.where(number == walks.sequences - 1, slots, (walk.first + walk.length) // STEPS + number + 1)
    for slot in range(walk.kept + gl.cdiv(walk.length, STEPS), after):
        clear_rows(states_ptr + (gl.cast(slot * H + walk.head, gl.int64) * K + walk.column) * K, K, HALF, K, WARPS)
