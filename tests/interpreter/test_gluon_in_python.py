"""What `gluon_in_python` finds in kernels that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gluon_in_python import Stuck, emulated
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.tools.tensor_descriptor import TensorDescriptor

from retrograd.core.kernels.gluon import tma_load

BLOCK = 4


@gluon.jit
def bring(x, memory, full, free, blocks, WAITS: gl.constexpr):  # type: ignore[no-untyped-def]
    for i in range(blocks):
        if WAITS:
            mbarrier.wait(free, (i & 1) ^ 1)
        mbarrier.expect(full, x.block_type.nbytes)
        tma_load(x, [i * 4], full, memory)


@gluon.jit
def double(out_ptr, memory, full, free, blocks, ARRIVES: gl.constexpr):  # type: ignore[no-untyped-def]
    for i in range(blocks):
        mbarrier.wait(full, i & 1)
        values = memory.load(None)
        if ARRIVES:
            mbarrier.arrive(free)
        gl.store(out_ptr + i * 4 + gl.arange(0, 4, None), values * 2)


@gluon.jit
def doubled(x, out_ptr, blocks, WAITS: gl.constexpr, ARRIVES: gl.constexpr):  # type: ignore[no-untyped-def]
    memory = gl.allocate_shared_memory(gl.float32, [4], x.layout)
    barriers = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(barriers.index(0), count=1)
    mbarrier.init(barriers.index(1), count=1)
    gl.warp_specialize(
        [
            (double, (out_ptr, memory, barriers.index(0), barriers.index(1), blocks, ARRIVES)),
            (bring, (x, memory, barriers.index(0), barriers.index(1), blocks, WAITS)),
        ],
        [1],
        [24],
    )


def run(seed: int, **how: Any) -> bool:
    """Whether the results are right."""
    x, out = torch.arange(8.0 * BLOCK), torch.zeros(8 * BLOCK)
    with emulated(seed):
        described = TensorDescriptor(x, [len(x)], [1], [BLOCK])
        doubled[(1,)](described, out, 8, **({"WAITS": True, "ARRIVES": True} | how))
    return torch.equal(out, 2 * x)


def test_a_right_kernel_gives_right_results_in_every_order(seed: int) -> None:
    assert all(run(seed + order) for order in range(20))


def test_groups_that_wait_for_each_other_are_found(seed: int) -> None:
    with pytest.raises(Stuck, match="groups of warps wait"):
        run(seed, ARRIVES=False)


def test_memory_that_is_used_again_too_early_is_found_in_some_order(seed: int) -> None:
    def found(order: int) -> bool:
        try:
            return not run(seed + order, WAITS=False)
        except AssertionError:
            return True

    assert any(found(order) for order in range(20))
