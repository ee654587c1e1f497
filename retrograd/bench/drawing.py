"""Draws a file of rows where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .results import read


def draw_file(path: Path) -> None:
    """Draw the rows of a file beside it, as a PNG; print why where that cannot be done."""
    if importlib.util.find_spec("matplotlib") is None:
        print("not drawn: no matplotlib here", flush=True)
        return
    from .plot import draw

    try:
        draw(read(path), path.with_suffix(".png"))
    except ValueError as error:
        print(f"{path.name}: {error}", flush=True)
