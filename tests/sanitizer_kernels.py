"""Kernels of a few lines that show what `compute-sanitizer --tool racecheck` takes for ordered.

`python tests/sanitizer_kernels.py relayed` runs one on the GPU and looks at its results; without a name, all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier

WARPS = 4  # of each group
SIZE = gl.constexpr(4 * 32 * WARPS)  # elements of a tile, 4 a thread
ROUNDS = 6  # how often the tile is filled


@gluon.jit
def writer(x_ptr, tile, full, empty, ROUNDS: gl.constexpr, LAYOUT: gl.constexpr, ORDERED: gl.constexpr,
           TOGETHER: gl.constexpr):  # fmt: skip
    """Fill the tile, as `make` does; TOGETHER, its warps wait for one another too before they go on."""
    i = gl.arange(0, SIZE, LAYOUT)
    for n in range(ROUNDS):
        values = gl.load(x_ptr + n * SIZE + i)
        if ORDERED:
            mbarrier.wait(empty, (n + 1) & 1)
        if TOGETHER:
            block_barrier()
        tile.store(values)
        block_barrier()
        if ORDERED:
            mbarrier.arrive(full, count=1)


@gluon.jit
def reader(y_ptr, tile, full, empty, ROUNDS: gl.constexpr, LAYOUT: gl.constexpr, ORDERED: gl.constexpr,
           TOGETHER: gl.constexpr):  # fmt: skip
    """Read the tile and give it back, as `finish` does."""
    i = gl.arange(0, SIZE, LAYOUT)
    for n in range(ROUNDS):
        if ORDERED:
            mbarrier.wait(full, n & 1)
        if TOGETHER:
            block_barrier()
        values = tile.load(LAYOUT)
        block_barrier()
        if ORDERED:
            mbarrier.arrive(empty, count=1)
        gl.store(y_ptr + n * SIZE + i, values)


@gluon.jit
def relay(tile, sums_ptr, full, done, ROUNDS: gl.constexpr, LAYOUT: gl.constexpr):
    """Read the tile and pass it on, as `walk_back` does."""
    i = gl.arange(0, SIZE, LAYOUT)
    total = gl.zeros([SIZE], gl.float32, LAYOUT)
    for n in range(ROUNDS):
        mbarrier.wait(full, n & 1)
        total += tile.load(LAYOUT)
        block_barrier()
        mbarrier.arrive(done, count=1)
    gl.store(sums_ptr + i, total)


@gluon.jit
def handed_over_kernel(x_ptr, y_ptr, ROUNDS: gl.constexpr, ORDERED: gl.constexpr, TOGETHER: gl.constexpr,
                       WARPS: gl.constexpr):  # fmt: skip
    """Two groups of warps: the reader waits for the writer and the writer for the reader, or nobody for anybody."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    tile = gl.allocate_shared_memory(gl.float32, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (reader, (y_ptr, tile, full, empty, ROUNDS, LAYOUT, ORDERED, TOGETHER)),
            (writer, (x_ptr, tile, full, empty, ROUNDS, LAYOUT, ORDERED, TOGETHER)),
        ],
        [WARPS],
        [64],
    )


@gluon.jit
def relayed_kernel(x_ptr, y_ptr, sums_ptr, ROUNDS: gl.constexpr, WARPS: gl.constexpr):
    """Three groups in a ring: between the writer's stores and the reader's loads lie two barriers and a third group."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    tile = gl.allocate_shared_memory(gl.float32, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (relay, (tile, sums_ptr, full, done, ROUNDS, LAYOUT)),
            (writer, (x_ptr, tile, full, empty, ROUNDS, LAYOUT, True, False)),
            (reader, (y_ptr, tile, done, empty, ROUNDS, LAYOUT, True, False)),
        ],
        [WARPS, WARPS],
        [64, 64],
    )


@gluon.jit
def scale(x_ptr, y_ptr, factor, LAYOUT: gl.constexpr):
    """y = factor x / sum of x; the sum passes shared memory, where captured values may have been."""
    i = gl.arange(0, SIZE, LAYOUT)
    values = gl.load(x_ptr + i)
    gl.store(y_ptr + i, factor * values / gl.sum(values, 0))


@gluon.jit
def captured_kernel(x_ptr, y_ptr, factors_ptr, WARPS: gl.constexpr):
    """Three groups of warps with nothing in common but the values that the first hands to the others."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    one, two, three = gl.load(factors_ptr), gl.load(factors_ptr + 1), gl.load(factors_ptr + 2)
    gl.warp_specialize(
        [
            (scale, (x_ptr, y_ptr, one, LAYOUT)),
            (scale, (x_ptr + SIZE, y_ptr + SIZE, two, LAYOUT)),
            (scale, (x_ptr + 2 * SIZE, y_ptr + 2 * SIZE, three, LAYOUT)),
        ],
        [WARPS, WARPS],
        [64, 64],
    )


@gluon.jit
def one_group_kernel(x_ptr, y_ptr, ROUNDS: gl.constexpr, WARPS: gl.constexpr):
    """One group of warps, which waits for itself: what one thread stores another loads."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    TURNED: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    tile = gl.allocate_shared_memory(gl.float32, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    i = gl.arange(0, SIZE, LAYOUT)
    down = gl.arange(0, 128, gl.SliceLayout(0, TURNED))[None, :] * WARPS
    down += gl.arange(0, WARPS, gl.SliceLayout(1, TURNED))[:, None]
    for n in range(ROUNDS):
        tile.store(gl.load(x_ptr + n * SIZE + i))
        block_barrier()
        turned = tile._reinterpret(gl.float32, [WARPS, 128], gl.SwizzledSharedLayout(1, 1, 1, [0, 1])).load(TURNED)
        block_barrier()
        gl.store(y_ptr + n * SIZE + down, turned)


@gluon.jit
def copies_kernel(a_ptr, b_ptr, y_ptr, ROUNDED: gl.constexpr, WARPS: gl.constexpr):
    """Sums over 8 lanes: each of these has a copy, and all store theirs to the same place.

    The first addition takes its own product unrounded and the neighbour's rounded, so copies may differ in the last
    bit; not so where products are ROUNDED before.
    """
    TILE: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [1, WARPS], [0, 1])
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    columns = gl.arange(0, SIZE, gl.SliceLayout(0, TILE))[None, :]
    offsets = gl.arange(0, 8, gl.SliceLayout(1, TILE))[:, None] + 8 * columns
    a, b = gl.load(a_ptr + offsets), gl.load(b_ptr + offsets)
    if ROUNDED:
        products = gl.fma(a, b, gl.zeros_like(a))
    else:
        products = a * b
    gl.store(y_ptr + gl.arange(0, SIZE, LINE), gl.convert_layout(gl.sum(products, 0), LINE))


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).cuda() + 0.5


def handed_over(ordered: bool = True, together: bool = False) -> None:
    x = drawn(ROUNDS, SIZE.value)
    y = torch.zeros_like(x)
    handed_over_kernel[(1,)](x, y, ROUNDS, ordered, together, WARPS, num_warps=WARPS)
    assert not ordered or torch.equal(x, y)


def relayed() -> None:
    x = drawn(ROUNDS, SIZE.value)
    y, sums = torch.zeros_like(x), torch.zeros(SIZE.value, device="cuda")
    relayed_kernel[(1,)](x, y, sums, ROUNDS, WARPS, num_warps=WARPS)
    assert torch.equal(x, y)
    assert torch.allclose(sums, x.sum(0))


def captured() -> None:
    x, factors = drawn(3, SIZE.value), drawn(3)
    y = torch.zeros_like(x)
    captured_kernel[(1,)](x, y, factors, WARPS, num_warps=WARPS)
    assert torch.allclose(y, factors[:, None] * x / x.sum(1, keepdim=True))


def one_group() -> None:
    x = drawn(ROUNDS, SIZE.value)
    y = torch.zeros_like(x)
    one_group_kernel[(1,)](x, y, ROUNDS, WARPS, num_warps=WARPS)
    assert torch.equal(x, y)


def copies(rounded: bool = False) -> None:
    a, b = drawn(2, SIZE.value, 8)
    y = torch.zeros(SIZE.value, device="cuda")
    copies_kernel[(1,)](a, b, y, rounded, WARPS, num_warps=WARPS)
    assert torch.allclose(y, (a * b).sum(1))


RUNS: dict[str, Callable[[], None]] = {
    "one_group": one_group,
    "handed_over": handed_over,
    "handed_over_together": lambda: handed_over(together=True),
    "relayed": relayed,
    "captured": captured,
    "not_ordered": lambda: handed_over(ordered=False),
    "copies": copies,
    "copies_of_rounded": lambda: copies(rounded=True),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or RUNS:
        RUNS[name]()
        torch.cuda.synchronize()
        print(f"ran {name}", flush=True)
    print("finished", flush=True)
