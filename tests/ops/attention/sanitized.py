"""The calls of attention under the sanitizers, which come to every kernel."""

from __future__ import annotations

from typing import Any

import torch

import retrograd

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
    "size_128_window",
    "size_192_128",
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


STEPS = (steps_in_place,)
