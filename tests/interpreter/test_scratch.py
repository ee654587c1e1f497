"""Integer workspace that is zeroed before the launch, and run-time numbers."""

from __future__ import annotations

import torch
from scaled.op import OP

from retrograd.core.torch.op import bind_unregistered
from retrograd.testing.interpreter import interpreted


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
