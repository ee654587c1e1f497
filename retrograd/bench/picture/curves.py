"""Curves: share of the limit against size, a panel for each kind and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..results import Row
from ..selection import size_letter
from .labels import Panel, short
from .page import GREY, MARGIN, SMALL, WIDTH, Part, axes_at, inches, text_at
from .styles import OWN, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COLUMNS = 6
LEFT, BETWEEN = 0.5, 0.14  # inches for the numbers of the axis, and between panels
HEADING, TITLE, PANEL, BELOW = 0.22, 0.2, 1.35, 0.42  # inches
WIDE = 20  # a larger ratio between the largest and the smallest speed has a logarithmic axis


class Cell(NamedTuple):
    """A panel of one pass."""

    heading: str
    panel: Panel
    rows: list[Row]


class Scale(NamedTuple):
    """The vertical axis that all panels share, in percent of the limit."""

    lowest: float
    highest: float
    logarithmic: bool


def curves(passes: Mapping[str, Mapping[Panel, list[Row]]], styles: Mapping[str, Style]) -> list[Part]:
    """Strips of panels: one strip for all passes if they fit side by side, else strips for each pass."""
    strips: list[list[Cell]] = []
    cells = [[Cell(heading, panel, rows) for panel, rows in panels.items()] for heading, panels in passes.items()]
    if sum(map(len, cells)) <= MOST_COLUMNS:
        strips = [[cell for own in cells for cell in own]]
    else:
        for own in filter(None, cells):
            columns = ceil(len(own) / ceil(len(own) / MOST_COLUMNS))
            strips += [own[start : start + columns] for start in range(0, len(own), columns)]
    scale = scale_of([row for own in cells for cell in own for row in cell.rows])
    return [strip_of(strip, scale, styles) for strip in strips if strip]


def scale_of(rows: Sequence[Row]) -> Scale:
    """The axis on which all rows and the limit are seen."""
    shares = [100 * (row.fraction or 0) for row in rows]
    lowest, highest = min(shares, default=1.0), max([100.0, *shares])
    logarithmic = highest > WIDE * lowest
    return Scale(0.7 * lowest if logarithmic else 0.0, (1.5 if logarithmic else 1.08) * highest, logarithmic)


def strip_of(cells: Sequence[Cell], scale: Scale, styles: Mapping[str, Style]) -> Part:
    """Panels side by side."""
    room = WIDTH - 2 * MARGIN - LEFT
    width = (room - BETWEEN * (len(cells) - 1)) / len(cells)

    def draw(figure: Figure, top: float) -> None:
        heading = ""
        for place, cell in enumerate(cells):
            left = MARGIN + LEFT + place * (width + BETWEEN)
            if cell.heading != heading:
                text_at(figure, left, top, cell.heading, SMALL + 1, weight="bold")
            heading = cell.heading
            text_at(figure, left, top - HEADING, cell.panel.title, SMALL)
            axes = axes_at(figure, left, top - HEADING - TITLE, width, PANEL)
            draw_panel(axes, cell.rows, scale, styles, width)
            if place:
                axes.tick_params(axis="y", labelleft=False, length=0)
            else:
                axes.set_ylabel("% of limit")

    return Part(HEADING + TITLE + PANEL + BELOW, draw)


def draw_panel(axes: Axes, rows: Sequence[Row], scale: Scale, styles: Mapping[str, Style], width: float) -> None:
    """Share of the limit against size, a line for each implementation; ours above the others."""
    letter = size_letter(list(rows[0].shape)) or next(iter(rows[0].shape))
    for rank, (impl, style) in enumerate(reversed(list(styles.items()))):
        points = sorted((row.shape[letter], 100 * (row.fraction or 0)) for row in rows if row.impl == impl)
        if points:
            axes.plot(*zip(*points, strict=True), linewidth=2.0 if impl == OWN else 1.2, zorder=3 + rank,
                      **style.marker(6))  # fmt: skip
    sizes = sorted({row.shape[letter] for row in rows})
    axes.set_xscale("log", base=2)
    shown = labelled(sizes, width)
    axes.set_xticks(shown, [short(value) for value in shown])
    axes.set_xticks(sizes, minor=True)
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.set_xlabel(letter, labelpad=1)
    if scale.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.tick_params(axis="y", which="minor", length=0)
    else:
        axes.set_yticks(range(0, 101, 25))
    axes.set_ylim(scale.lowest, scale.highest)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.axhline(100, color=GREY, linestyle="--", linewidth=0.9, zorder=1)


def labelled(sizes: Sequence[int], width: float) -> list[int]:
    """The sizes whose labels fit on an axis of this width in inches, the largest among them."""
    doubling = 0.9 * width / max(1.0, log2(sizes[-1] / sizes[0]))
    kept = [sizes[-1]]
    for one in reversed(sizes[:-1]):
        needed = (inches(short(one), SMALL) + inches(short(kept[-1]), SMALL)) / 2 + 0.06
        if doubling * log2(kept[-1] / one) > needed:
            kept.append(one)
    return kept[::-1]
