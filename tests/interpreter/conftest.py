"""Kernels in Triton's interpreter, which needs a separate process started with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retrograd.ops.linear_scan.triton import plan as linear_scan
from retrograd.testing.interpreter import ACTIVE, interpreted


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.interpreter)
            if not ACTIVE:
                item.add_marker(pytest.mark.skip(reason="run apart: TRITON_INTERPRET=1 pytest tests/interpreter"))


@pytest.fixture(autouse=True)
def _kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Tiles of 32 steps instead of 256 are interpreted faster, and small cases then have several.
    for name in ("forward", "backward"):
        monkeypatch.setattr(linear_scan, name, lambda spec: linear_scan.Tile(steps=4, levels=3, channels=32))
    with interpreted():
        yield
