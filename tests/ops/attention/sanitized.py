"""The calls of attention under the sanitizers, which come to every kernel."""

from __future__ import annotations

from typing import Any

import torch

import retrograd
from ops.attention.structures import forced

NAMED = (
    "plain",
    "window",
    "bias",
    "sinks",
    "packed_gaps",
    "wide_values",
    "everything",
    "fused_packed",
    "segments_tiles",
    "size_64_packed",
    "size_64_bias",
    "size_128_window",
    "size_128_bias",
    "size_192_128",
    "size_256",
)


def steps_in_place(device: str) -> None:
    """The kernel that writes the caches, at the last slot of a row and beyond."""
    for size, pairs, dtype in ((64, 16, torch.bfloat16), (24, 0, torch.float32)):
        q, k, v = (torch.randn(2, heads, size, device=device, dtype=dtype) for heads in (4, 2, 2))
        cache_k, cache_v = (torch.zeros(2, 5, 2, size, device=device, dtype=dtype) for _ in range(2))
        tables: dict[str, Any] = {name: torch.ones(5, pairs, device=device) for name in ("cos", "sin") if pairs}
        steps = torch.tensor([0, 3], dtype=torch.int32, device=device)
        for _ in range(2 if device == "cpu" else 3):
            out, steps = retrograd.attention_step_(q, k, v, cache_k, cache_v, steps, **tables)
            assert out[0].isfinite().all()


def steps_on_hopper(device: str) -> None:
    """The kernels of either structure, at the borders of several blocks, of which a ring has all and one more."""
    for name, size, value_size in (("walk", 128, 128), ("walk, wide", 64, 64), ("blocks", 192, 128)):
        q, k, v = (
            torch.randn(2, *shape, device=device, dtype=torch.bfloat16)
            for shape in ((4, size), (2, size), (2, value_size))
        )
        cache_k, cache_v = torch.randn(2, 700, 2, size).to(k), torch.randn(2, 700, 2, value_size).to(v)
        steps = torch.tensor([0, 640], dtype=torch.int32, device=device)
        with forced(name):
            out, _ = retrograd.attention_step_(q, k, v, cache_k, cache_v, steps)
        assert out.isfinite().all()


STEPS = (steps_in_place, steps_on_hopper)
