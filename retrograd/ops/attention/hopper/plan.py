"""The tiles of the Hopper kernels of attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ..arrays import columns
from ..op import Spec

MULTIPROCESSORS = 132  # of an H200; a program stays on each
SECTION = 2**25  # bytes of the heads that are computed side by side, which fit in the L2


@dataclass(frozen=True)
class ForwardPlan:
    """The tiles of the forward pass; but for `keys`, they only decide the time.

    Attributes:
        groups: of warps that attend, two or three, each with queries of its own in a tile.
        queries: of a group of warps.
        keys: of a block.
        panels: of columns, in which q and k are copied: 3 of 64 leave more room than tiles of 256 for heads of 192.
        stages: blocks of k, and of v, in shared memory.
        queued: tiles whose q is in shared memory: one is attended to, a second one on its way.
        registers: of a thread that attends.
        beside: whether values are added beside the exponentials, and not before them.
        by_warps: whether warps release blocks one by one, and not groups.
        spills: spill instructions that tests allow.
        programs: maximum number of them.
        section: bytes of the keys and values of the heads that are computed side by side.
    """

    groups: int = 2
    queries: int = 64
    keys: int = 128
    panels: int = 1
    stages: int = 2
    queued: int = 2
    registers: int = 232
    beside: bool = True
    by_warps: bool = False
    spills: int = 0
    programs: int = MULTIPROCESSORS
    section: int = SECTION


@dataclass(frozen=True)
class BackwardPlan:
    """The tiles of the backward pass; `programs` and `section` only decide the time.

    Attributes:
        keys: of a program's tile.
        queries: of a tile that it walks over: 64, or 128 in two halves.
        stages: tiles of q in shared memory, and of dout; two of each where a step takes 128 queries.
        registers: of a thread that computes products.
        spills: spill instructions that tests allow.
        programs: maximum number of them.
        section: bytes of what the heads that are computed side by side have of queries: q, dout and the sums of dq.
    """

    keys: int = 128
    queries: int = 64
    stages: tuple[int, int] = (2, 2)
    registers: int = 240
    spills: int = 0
    programs: int = MULTIPROCESSORS
    section: int = SECTION


@dataclass(frozen=True)
class WalksPlan:
    """The tiles of the backward pass of heads wider than 128: dq has a walk, and dk and dv another one.

    Attributes:
        rows: queries or keys of a group, whose gradient it has; there are two groups. Where dk and dv have a group
            each, these are the same keys.
        walked: keys or queries of a block that it walks over.
        stages: blocks of k and of v in shared memory, in the walk for dq.
        stages_k: of q and of dout, in that for dk and dv.
        registers: of a thread that computes products.
        spills: spill instructions that tests allow.
        programs: maximum number of them.
        section: bytes of what the heads that are computed side by side read.
    """

    rows: int = 64
    walked: int = 64
    stages: tuple[int, int] = (2, 1)
    stages_k: tuple[int, int] = (2, 2)
    registers: int = 240
    spills: int = 0
    programs: int = MULTIPROCESSORS
    section: int = SECTION


# Columns of a head of queries and keys that products take, and of values, in tiles.
FORWARD = {
    (32, 32): ForwardPlan(beside=False),
    (64, 64): ForwardPlan(beside=False),
    (128, 128): ForwardPlan(),
    (192, 128): ForwardPlan(panels=3, queued=1, by_warps=True),
    (256, 128): ForwardPlan(keys=64, queued=1, by_warps=True),
    (192, 256): ForwardPlan(keys=64, queued=1, by_warps=True, spills=8),
    (256, 256): ForwardPlan(keys=64, queued=1, by_warps=True, spills=8),
}
# Columns of both in tiles.
BACKWARD: dict[tuple[int, int], BackwardPlan | WalksPlan] = {
    (32, 32): BackwardPlan(queries=128, spills=16),
    (64, 64): BackwardPlan(queries=128, spills=16),
    (128, 128): BackwardPlan(spills=40),
    (256, 128): WalksPlan(stages=(2, 2), section=2 * SECTION, spills=30),
    (256, 256): WalksPlan(spills=80),
}
SUMS = 320  # columns of dk and dv, at most, of which a thread's registers have sums beside results
LEAST_SIZE = 32  # of a head: narrower ones would leave columns unused that their products cost
WIDTH = 64  # of the columns that products take at once, of wider heads
WIDEST_WITH_BIAS = 128  # columns of a head in tiles: beside wider ones there is no room for a bias
UNIT = 8  # of a head's size: tensor descriptors need strides of 16 bytes
LONG = 2048  # keys of a sequence
LEAST_SOFTCAP = 0.1  # of the backward pass, which computes its derivative from probabilities


def sizes_of(spec: Spec) -> tuple[int, int]:
    """Columns of a call's heads in tiles."""
    return columns(spec.head_size), columns(spec.value_size)


def used_columns(size: int) -> int:
    """Columns of a tile that products take: in tiles of 256 columns they leave out those after a head of 192."""
    return columns(size) if size <= WIDTH else -(-size // WIDTH) * WIDTH


def summed_columns(size: int) -> int:
    """Columns of a tile that products sum over: as above, and of tiles of 128 columns the first 80 or 96."""
    return next((own for own in (80, 96) if WIDTH < size <= own), used_columns(size))


def forward_tiles(head_size: int, value_size: int) -> ForwardPlan:
    """The tiles of the forward pass, which one query's kernels share."""
    return FORWARD[used_columns(head_size), columns(value_size)]


def in_one_group(spec: Spec) -> bool:
    """Whether a group of warps has both dk and dv of its keys, of heads wider than 128, and not one of them."""
    return used_columns(spec.head_size) + used_columns(spec.value_size) <= SUMS


def has_tiles(spec: Spec, which: Pass) -> bool:
    """Whether there are tiles for heads of these sizes."""
    sizes = spec.head_size, spec.value_size
    if not all(size >= LEAST_SIZE and size % UNIT == 0 for size in sizes):
        return False
    if which == "bwd":
        return sizes_of(spec) in BACKWARD
    return (used_columns(spec.head_size), columns(spec.value_size)) in FORWARD


def algorithm(spec: Spec) -> str:
    """The backward algorithm of the kernels. Where ids tell sequences apart, "fused" wider heads have this one, too."""
    if isinstance(BACKWARD[sizes_of(spec)], BackwardPlan):
        return "fused"
    return spec.backward if spec.segmented else "split"


def steps_of(spec: Spec, time: int) -> int:
    """The steps of a sequence: of packed ones on average; where ids tell them apart, of a row."""
    return -(-time // max(spec.sequences, 1)) if spec.packed else time


def planned(spec: Spec, arch: Arch, which: Pass) -> ForwardPlan | BackwardPlan | WalksPlan:
    """The tiles of a pass.

    Bits depend on the sizes of a head alone. Three groups of warps have larger tiles than two, of which a mask, or the
    end of few keys, leaves more unused.
    """
    if which == "bwd":
        return BACKWARD[sizes_of(spec)]
    plan = forward_tiles(spec.head_size, spec.value_size)
    long = steps_of(spec, spec.keys) >= LONG
    if spec.bias is not None:
        plan = replace(plan, section=SECTION // 4)  # the bias, too, goes through the L2
        if spec.packed or spec.segmented:  # read pair by pair
            plan = replace(plan, spills=320)
        # Two stages of it take 64 KB. With a window there are spills before the loop.
        return replace(plan, queued=1, spills=max(16, plan.spills)) if max(sizes_of(spec)) > WIDTH else plan
    if max(sizes_of(spec)) <= WIDTH and spec.sides == (None, None) and long:
        return replace(plan, groups=3, registers=160, beside=True, by_warps=True)
    return plan
