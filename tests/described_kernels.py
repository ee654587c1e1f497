"""Kernels that read blocks through tensor descriptors from the host, in Triton and in Gluon, as attention reads q."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from retrograd.core.kernels.gluon import tma_load
from retrograd.core.program import Array, Descriptor, Launch, Program

B, T, H, D, ROWS = 2, 100, 3, 64, 32  # the last block of a sequence is not full


@triton.jit
def doubled(q, out_ptr, T, H, ROWS: tl.constexpr, D: tl.constexpr):
    """out (B, T, H, D), dense, = 2 q."""
    blocks = tl.cdiv(T, ROWS)
    pid = tl.program_id(0)
    t, h, b = pid % blocks * ROWS, pid // blocks % H, pid // blocks // H
    block = q.load([b, t, h, 0]).reshape(ROWS, D)
    row, column = t + tl.arange(0, ROWS), tl.arange(0, D)
    at = ((b * T + row)[:, None] * H + h) * D + column[None, :]
    tl.store(out_ptr + at, block * 2, mask=(row < T)[:, None])


@gluon.jit
def doubled_in_gluon(q, out_ptr, T, H, ROWS: gl.constexpr, D: gl.constexpr):
    """The same; a program takes one block of one head."""
    blocks = (T + ROWS - 1) // ROWS
    pid = gl.program_id(0)
    t, h, b = pid % blocks * ROWS, pid // blocks % H, pid // blocks // H
    memory = gl.allocate_shared_memory(q.dtype, [1, ROWS, 1, D], q.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, ROWS * D * 2)
    tma_load(q, [b, t, h, 0], ready, memory)
    mbarrier.wait(ready, 0)
    mbarrier.invalidate(ready)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    block = memory.reshape([ROWS, D]).load(layout)
    row = t + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    at = ((b * T + row)[:, None] * H + h) * D + column[None, :]
    gl.store(out_ptr + at, block * 2, mask=(row < T)[:, None])


def program(kernel: Any, times: int = 3, time: int = T) -> Program:
    """2 q, where q is one of `times` arrays that lie beside each other."""
    layout = gl.NVMMASharedLayout(128, 16, rank=4) if kernel is doubled_in_gluon else None
    q, out = Array("q", (B, time, H, D), "bfloat16"), Array("out", (B, time, H, D), "bfloat16")
    strides = (time * times * H * D, times * H * D, D, 1)
    launch = Launch(
        kernel,
        grid=-(-time // ROWS) * H * B,
        arrays={"q": "q", "out_ptr": "out"},
        scalars={"T": time, "H": H},
        constants={"ROWS": ROWS, "D": D},
        descriptors={"q": Descriptor(q.shape, strides, (1, ROWS, 1, D), layout)},
    )
    return Program((q,), (out,), (), (launch,))
