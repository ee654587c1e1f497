"""Cases line by line: a dot for the share of the limit of each implementation, and the times in milliseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..results import Row
from .labels import case_label, kind_of, milliseconds
from .page import GREY, MARGIN, SMALL, WIDTH, Part, axes_at, inches, text_at
from .styles import OWN, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADING, LINE, BETWEEN, BELOW = 0.24, 0.19, 0.07, 0.42  # inches; BETWEEN kinds of cases
NUMBERS = 1.22  # inches for two columns of times
OURS, OTHERS = 0.46, 1.08  # where the columns end, in inches from the panel's right edge
MARKER = 0.63  # where the marker of the second column is
LARGE, SMALLER = 8.0, 5.5  # points: ours is larger and lies below the others, so that none hides another


def dots(passes: Mapping[str, Sequence[Row]], styles: Mapping[str, Style]) -> Part:
    """A line for each case, a column for each pass."""
    rows = [row for own in passes.values() for row in own]
    usual = Counter(row.dtype for row in rows).most_common(1)[0][0]
    cases = ordered({row.case: row for row in rows})
    labels = [case_label(row, usual) for row in cases.values()]
    lines = lines_of([kind_of(row) for row in cases.values()])
    places = dict(zip(cases, lines, strict=True))
    wide = max(inches(label, SMALL) for label in labels) + 0.12
    width = (WIDTH - 2 * MARGIN - wide) / len(passes) - NUMBERS
    height = lines[-1] + 0.7 * LINE

    def draw(figure: Figure, top: float) -> None:
        for place, (heading, own) in enumerate(passes.items()):
            left = MARGIN + wide + place * (width + NUMBERS)
            text_at(figure, left, top, heading, SMALL + 1, weight="bold")
            for text, right in (("ours, ms", OURS), ("best peer", OTHERS)):
                text_at(figure, left + width + right - inches(text, SMALL), top, text, SMALL, GREY)
            axes = axes_at(figure, left, top - HEADING, width, height)
            axes.set_ylim(height, 0)
            axes.set_yticks(lines, labels if place == 0 else [""] * len(labels))
            draw_dots(axes, places, own, styles)
            for case, line in places.items():
                draw_times(axes, line, [row for row in own if row.case == case], styles, width)

    return Part(HEADING + height + BELOW, draw)


def ordered(cases: Mapping[str, Row]) -> dict[str, Row]:
    """Cases of one kind side by side, ordered by their sizes; kinds in the order of the file."""
    kinds = list(dict.fromkeys(kind_of(row) for row in cases.values()))
    return dict(sorted(cases.items(), key=lambda item: (kinds.index(kind_of(item[1])), *item[1].shape.values())))


def lines_of(kinds: Sequence[str]) -> list[float]:
    """The middle of each line, in inches from the top, with a gap where another kind of case begins."""
    begins = accumulate(kind != before for before, kind in pairwise([kinds[0], *kinds]))
    return [LINE * (place + 0.5) + BETWEEN * number for place, number in enumerate(begins)]


def draw_dots(axes: Axes, places: Mapping[str, float], rows: Sequence[Row], styles: Mapping[str, Style]) -> None:
    """The share of the limit of each row."""
    right = max(104.0, *(102 * (row.fraction or 0) for row in rows))
    axes.set_xlim(0, right)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_xlabel("% of limit", labelpad=1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.hlines(list(places.values()), 0, right, color="#e4e4e4", linewidth=0.6, zorder=0)
    axes.axvline(100, color=GREY, linestyle="--", linewidth=0.9, zorder=1)
    for rank, (impl, style) in enumerate(styles.items()):
        own = [(100 * (row.fraction or 0), places[row.case]) for row in rows if row.impl == impl]
        if own:
            axes.plot(*zip(*own, strict=True), linestyle="none", clip_on=False, zorder=3 + rank,
                      **style.marker(LARGE if impl == OWN else SMALLER))  # fmt: skip


def draw_times(axes: Axes, line: float, rows: Sequence[Row], styles: Mapping[str, Style], width: float) -> None:
    """Our time, and the fastest of the others with its marker, to the right of the panel."""
    beside = axes.get_yaxis_transform()

    def number(inch: float, row: Row) -> None:
        axes.text(1 + inch / width, line, milliseconds(row.device_ms or 0), transform=beside, ha="right",
                  va="center_baseline", fontsize=SMALL)  # fmt: skip

    ours = [row for row in rows if row.impl.startswith(OWN)]
    others = [row for row in rows if not row.impl.startswith(OWN)]
    if ours:
        number(OURS, min(ours, key=lambda row: row.device_ms or 0))
    if others:
        fastest = min(others, key=lambda row: row.device_ms or 0)
        number(OTHERS, fastest)
        axes.plot([1 + MARKER / width], [line], transform=beside, clip_on=False, linestyle="none",
                  **styles[fastest.impl].marker(SMALLER))  # fmt: skip
