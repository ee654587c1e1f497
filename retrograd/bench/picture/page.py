"""A page of a fixed width: parts from top to bottom, placed in inches, so that no text meets another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from .styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 9.0  # inches: 900 pixels of a page, so that a point of a font is 1.4 of them
DPI = 200  # two pixels of the PNG for one of the page
MARGIN = 0.12
LARGE, NORMAL, SMALL = 11.0, 8.0, 7.5  # sizes of fonts, in points
GREY = "#555555"
FONT = "DejaVu Sans"  # which matplotlib brings
RC: dict[Any, Any] = {
    "font.family": FONT,
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Part:
    """A horizontal strip of the page.

    Attributes:
        height: in inches.
        draw: called with the figure and the strip's top, in inches above the bottom of the page.
    """

    height: float
    draw: Callable[[Figure, float], None]


def page(parts: Sequence[Part]) -> Figure:
    """The parts below one another."""
    top = sum(part.height for part in parts) + 2 * MARGIN
    figure = Figure(figsize=(WIDTH, top), dpi=DPI)
    top -= MARGIN
    with matplotlib.rc_context(RC):
        for part in parts:
            part.draw(figure, top)
            top -= part.height
    return figure


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches."""
    whole_width, whole_height = figure.get_size_inches()
    box = (left / whole_width, (top - height) / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(box)


def text_at(
    figure: Figure, left: float, top: float, text: str, size: float, colour: str = "black", weight: str = "normal"
) -> None:
    """Text whose upper left corner is at a place in inches."""
    width, height = figure.get_size_inches()
    figure.text(left / width, top / height, text, va="top", fontsize=size, color=colour, fontweight=weight)


@cache
def inches(text: str, size: float) -> float:
    """The width of a line of text."""
    font = FontProperties(family=FONT, size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def folded(text: str, size: float, width: float = WIDTH - 2 * MARGIN) -> list[str]:
    """Lines of at most this width, in inches, broken between words."""
    lines: list[str] = []
    for word in text.split():
        if lines and inches(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def paragraph(text: str, size: float = NORMAL, colour: str = "black", weight: str = "normal") -> Part:
    """Text as wide as the page."""
    lines = folded(text, size)
    pitch = 1.45 * size / 72

    def draw(figure: Figure, top: float) -> None:
        for place, line in enumerate(lines):
            text_at(figure, MARGIN, top - place * pitch, line, size, colour, weight)

    return Part(len(lines) * pitch + 0.03, draw)


def legend(styles: Mapping[str, Style]) -> Part:
    """Markers and names, as many on a line as fit."""
    pitch, beside, between = 0.2, 0.12, 0.3
    places: list[tuple[int, float]] = []
    line, left = 0, 0.0
    for name in styles:
        width = beside + inches(name, NORMAL) + between
        if left + width - between > WIDTH - 2 * MARGIN:
            line, left = line + 1, 0.0
        places.append((line, left))
        left += width
    height = (line + 1) * pitch

    def draw(figure: Figure, top: float) -> None:
        axes = axes_at(figure, MARGIN, top, WIDTH - 2 * MARGIN, height)
        axes.set(xlim=(0, WIDTH - 2 * MARGIN), ylim=(-height, 0))
        axes.axis("off")
        for (name, style), (row, x) in zip(styles.items(), places, strict=True):
            y = -(row + 0.5) * pitch
            axes.plot([x + 0.06], [y], linestyle="none", **style.marker(6))
            axes.text(x + 0.06 + beside, y, name, va="center_baseline", fontsize=NORMAL)

    return Part(height + 0.06, draw)
