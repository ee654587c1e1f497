"""The structures of `attention_step_` on Hopper, by force: a plan chooses one by sizes that few tests have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from retrograd.ops.attention import torch_step
from retrograd.ops.attention.hopper.query.plan import HALF, WalkTiles

# The changes of a plan that make it another structure, or one whose programs have other parts of the work.
STRUCTURES: dict[str, dict[str, Any]] = {
    "walk": {"structure": "walk"},
    "walk, wide": {"structure": "walk", "walk": WalkTiles(columns=128, stages=2)},
    "walk, two programs": {"structure": "walk", "walk": WalkTiles(columns=64, stages=2, registers=HALF)},
    "blocks": {"structure": "blocks"},
}


@contextmanager
def forced(name: str | None) -> Iterator[None]:
    """A context in which calls run by one structure; with None by the one that the plan chooses."""
    usual = torch_step.QUERY
    changes = STRUCTURES[name] if name else {}
    torch_step.QUERY = replace(usual, replan=lambda plan: replace(plan, **changes))
    try:
        yield
    finally:
        torch_step.QUERY = usual
