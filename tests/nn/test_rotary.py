"""Rotary embedding in PyTorch's transforms and compiler."""

from __future__ import annotations

import torch

from retrograd.models.layers import AttentionConfig
from retrograd.nn.rotary import rotary_tables, rotate

CONFIG = AttentionConfig(2, rotary_emb_dim=8)


def test_the_operator_keeps_what_pytorch_asks_of_operators() -> None:
    torch.library.opcheck(rotary_tables, (torch.arange(5), 8, 10000.0, torch.float32))


def test_positions_may_be_batched_by_vmap() -> None:
    x, positions = torch.randn(3, 1, 5, 2, 12), torch.randint(1000, (5, 3))
    found = torch.vmap(lambda x, position: rotate(x, position, CONFIG), in_dims=(0, 1))(x, positions)
    assert torch.equal(found, torch.stack([rotate(*one, CONFIG) for one in zip(x, positions.T, strict=True)]))


def test_a_compiled_function_takes_any_length() -> None:
    compiled: list[int] = []

    def backend(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        compiled.append(1)
        return module

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def rotated(x: torch.Tensor) -> torch.Tensor:
        return rotate(x, torch.arange(x.shape[1]), CONFIG)

    for time in (7, 9, 20):
        x = torch.randn(2, time, 2, 12)
        assert torch.equal(rotated(x), rotate(x, torch.arange(time), CONFIG))
    assert len(compiled) == 1


def test_a_rotation_keeps_lengths_and_depends_on_differences_of_positions_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def product(i: int, j: int) -> torch.Tensor:
        a, b = (rotate(x, torch.tensor([at]), CONFIG) for x, at in ((q, i), (k, j)))
        assert torch.allclose(a.norm(), q.norm())
        return (a * b).sum()

    assert torch.allclose(product(3, 10), product(100_003, 100_010), rtol=1e-8)
    assert not torch.allclose(product(3, 10), product(3, 11))
