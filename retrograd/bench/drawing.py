"""Draws a file of rows where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .results import LIMITS, read


def draw_file(path: Path) -> None:
    """Draw the rows of a file beside it: those of PyTorch as <name>.png, those of JAX as <name>_jax.png.

    Without matplotlib, or where no row can be drawn, a line is printed that says so.
    """
    if importlib.util.find_spec("matplotlib") is None:
        print("not drawn: no matplotlib here", flush=True)
        return
    from .plot import draw

    rows = read(path)
    for framework in dict.fromkeys(row.framework for row in rows if row.op != LIMITS):
        try:
            draw(rows, picture_of(path, framework), framework)
        except ValueError as error:
            print(f"{path.name}: {error}", flush=True)


def picture_of(path: Path, framework: str) -> Path:
    """The picture of a framework's rows in a file."""
    return path.with_name(f"{path.stem}{'' if framework == 'torch' else f'_{framework}'}.png")
