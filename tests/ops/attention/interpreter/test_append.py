"""The kernel that writes caches and rotates, in Triton's interpreter, beside the same in PyTorch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from retrograd.core.arch import SUPPORTED
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.ops.attention.torch_step import APPEND, append_portable


@pytest.mark.parametrize(("pairs", "interleaved"), [(0, False), (8, False), (5, False), (12, True)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_it_has_the_bits_of_the_operations(pairs: int, interleaved: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, capacity, heads, groups = 3, 7, 4, 2
    # As parts of one row, of which only the columns are dense.
    q, k, v = torch.randn(batch, heads + 2 * groups, 24).to(dtype).split((heads, groups, groups), 1)
    arrays: dict[str, Any] = {"q": q, "k": k, "v": v[..., :20]}
    caches: dict[str, Any] = {"cache_k": torch.zeros(batch, capacity, groups, 24, dtype=dtype)}
    caches["cache_v"] = torch.zeros(batch, capacity, groups, 20, dtype=dtype)
    steps = torch.tensor([0, 6, 3], dtype=torch.int32)
    tables: dict[str, Any] = {name: torch.randn(capacity, pairs) if pairs else None for name in ("cos", "sin")}
    ours, theirs = ({name: cache.clone() for name, cache in caches.items()} for _ in range(2))
    expected = append_portable(**arrays, **theirs, steps=steps, **tables, interleaved=interleaved)

    given = [arrays["q"].contiguous(), arrays["k"].contiguous(), arrays["v"].contiguous(), *ours.values(), steps]
    spec = spec_of(APPEND, shapes_of([*given, *tables.values()]), [interleaved])
    program = APPEND.forward(spec).program({}, SUPPORTED["sm_90"])
    assert program is not None
    found = interpret(program, [*given, *(table for table in tables.values() if table is not None)])
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine, other)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
