"""Draws the rows of an op: curves where a case has several sizes, a line of dots for every other case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .picture.caption import limits, provenance
from .picture.curves import curves
from .picture.dots import dots
from .picture.labels import Panel, panel_of
from .picture.page import GREY, LARGE, NORMAL, SMALL, legend, page, paragraph
from .picture.styles import styles_of
from .results import LIMITS, Row, Speeds, latest

PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward and backward"}
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
TIMES = {"torch": "device time with a cold L2", "jax": "wall clock over many queued calls with a cold L2"}
FEWEST_POINTS = 3  # of a curve


def draw(rows: Sequence[Row], path: Path, framework: str | None = None) -> None:
    """Draw the latest rows of one op, GPU and framework as a PNG.

    Args:
        rows: of one results file.
        path: of the PNG.
        framework: `torch` or `jax`; the first row's by default.

    Raises:
        ValueError: there is no row to draw.
    """
    figure_of(rows, framework).savefig(path)


def figure_of(rows: Sequence[Row], framework: str | None = None) -> Figure:
    """The figure that `draw` writes."""
    timed = [row for row in rows if row.op != LIMITS and row.fraction is not None]
    timed = [row for row in timed if row.framework == (framework or timed[0].framework)]
    timed = [row for row in latest(timed) if row.gpu == timed[-1].gpu]
    if not timed:
        raise ValueError(f"no timed row{f' of {framework}' if framework else ''} to draw")
    first = timed[0]
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in timed))
    styles = styles_of(row.impl for row in timed)
    parts = [
        paragraph(f"{first.op} in {FRAMEWORKS[first.framework]} on {first.gpu}", LARGE, weight="bold"),
        paragraph(f"{dtypes}, {TIMES[first.framework]}, as a share of the limit: more is better", NORMAL, GREY),
        legend(styles),
    ]
    panels = panels_of(timed)
    curved = {panel for panel, own in panels.items() if len({row.case for row in own}) >= FEWEST_POINTS}
    rest = [row for row in timed if panel_of(row) not in curved]
    passes = {name: heading for name, heading in PASSES.items() if any(row.pass_ == name for row in timed)}
    if curved:
        lines = [row for row in timed if panel_of(row) in curved]
        parts += curves({heading: panels_of(of_pass(name, lines)) for name, heading in passes.items()}, styles)
    if rest:
        parts.append(dots({heading: of_pass(name, rest) for name, heading in passes.items()}, styles))
    below = (limits(timed, Speeds(rows)), provenance(timed))
    return page([*parts, *(paragraph(text, SMALL, GREY) for text in below)])


def of_pass(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of a pass."""
    return [row for row in rows if row.pass_ == name]


def panels_of(rows: Sequence[Row]) -> dict[Panel, list[Row]]:
    """Rows by panel."""
    found: dict[Panel, list[Row]] = {}
    for row in rows:
        found.setdefault(panel_of(row), []).append(row)
    return found
