"""Integer workspace that is zeroed before the launch, and run-time numbers."""

from __future__ import annotations

from dataclasses import replace

import torch
from checks.interpreter import interpreted
from described_kernels import B, D, H, T, doubled, program
from scaled.op import OP

from retrograd.core.program import Program
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.op import bind_unregistered


def test_kernels_read_numbers_and_zeroed_integers() -> None:
    call, x = bind_unregistered(OP), torch.randn(5, 33, requires_grad=True)
    with interpreted():
        for scale, seed in ((2.0, 7), (0.5, -1)):
            numbers = {"scale": torch.tensor(scale), "seed": torch.tensor(seed, dtype=torch.int32)}
            (y,) = call({"x": x, **numbers}, {})
            assert y is not None
            torch.testing.assert_close(y, x * scale + seed + 1)
            (dx,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(dx, torch.full_like(x, scale))


def test_a_tensor_descriptor_reads_a_strided_view() -> None:
    q = torch.randn(B, T, 3, H, D).half()[:, :, 0]
    made = program(doubled)
    arrays = [replace(array, dtype="float16") for array in (*made.inputs, *made.outputs)]
    (out,) = interpret(Program((arrays[0],), (arrays[1],), (), made.launches), [q])
    assert torch.equal(out, 2 * q)
