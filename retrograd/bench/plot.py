"""Plots rows of results: speed against size, with the limit, in one panel for each kind and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure, SubFigure

from .results import LIMITS, Row, Speeds, latest
from .selection import size_letter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours and markers; those of peers are assigned in the order of the file. The palette is safe for the colour-blind.
OWN = {"retrograd": ("#d1495b", "o"), "retrograd (jax)": ("#e8a0aa", "o")}
PEERS = (("#30638e", "s"), ("#00798c", "^"), ("#8d96a3", "D"), ("#edae49", "v"), ("#7b5ea7", "P"), ("#4f772d", "X"))
PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward and backward"}
MOST_COLUMNS = 6
FEWEST_POINTS = 3  # of a line; panels with fewer sizes are drawn as bars
WIDE = 20  # a panel with a larger ratio between its speeds has a logarithmic axis
LIMIT_NAMES = {"bytes": "copy", "flops": "matrix product", "exp": "exponentials"}
PERCENT = "% of limit"
BOTH = "both"  # both frameworks in one figure; names of JAX implementations are marked
LEGEND_INCHES = 1.7  # width of one entry
TITLE_CHARACTERS = 11  # per inch


@dataclass(frozen=True)
class Panel:
    """The fields that the rows of a panel share: the kind of case, the dtype, and the letters except the size."""

    kind: str
    dtype: str
    letters: tuple[tuple[str, Any], ...]

    @property
    def title(self) -> str:
        """The panel's heading."""
        return " ".join([*([self.kind] if self.kind else []), *(f"{name} = {value}" for name, value in self.letters)])


def draw(rows: Sequence[Row], path: Path, framework: str | None = None) -> None:
    """Draw the latest rows of one op, GPU and framework as a PNG.

    Args:
        rows: of one results file.
        path: of the PNG.
        framework: `torch`, `jax` or `both`; the first row's by default.

    Raises:
        ValueError: there is no row to draw.
    """
    timed = [row for row in rows if row.op != LIMITS and row.fraction is not None]
    timed = [row for row in timed if framework == BOTH or row.framework == (framework or timed[0].framework)]
    timed = [row for row in latest(timed) if row.gpu == timed[-1].gpu]
    frameworks = " and ".join(dict.fromkeys(row.framework for row in timed))
    if framework == BOTH:
        timed = [replace(row, impl=f"{row.impl} (jax)") if row.framework == "jax" else row for row in timed]
    if not timed:
        raise ValueError(f"no timed row{f' of {framework}' if framework else ''} to draw")
    speeds = Speeds(rows)
    passes = [name for name in PASSES if any(row.pass_ == name for row in timed)]
    styles = styles_of(timed)
    with matplotlib.rc_context(
        {"font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        heights = [height(timed, name) for name in passes]
        figure = Figure(figsize=(width(timed), 1 + sum(heights)), dpi=130, layout="constrained")
        parts = figure.subfigures(len(passes), 1, squeeze=False, height_ratios=heights)
        for part, name in zip(parts[:, 0], passes, strict=True):
            draw_pass(part, [row for row in timed if row.pass_ == name], speeds, styles)
            part.suptitle(PASSES[name], x=0.01, ha="left", fontweight="bold")
        first = timed[0]
        dtypes = ", ".join(dict.fromkeys(row.dtype for row in timed))
        installed = {name: version for row in timed for name, version in row.versions.items()}
        versions = ", ".join(f"{name} {version}" for name, version in installed.items())
        lines = (
            f"{first.op} on {first.gpu}, {dtypes}, {frameworks}: cold L2, higher is better",
            f"{versions}, commit {first.commit}, {first.date[:10]}",
        )
        characters = int(figure.get_figwidth() * TITLE_CHARACTERS)
        figure.suptitle("\n".join(fill(line, characters) for line in lines))
        handles = [
            parts[0, 0].axes[0].plot([], [], color=c, marker=m, label=impl)[0] for impl, (c, m) in styles.items()
        ]
        columns = min(len(styles), int(figure.get_figwidth() / LEGEND_INCHES))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
        figure.savefig(path)


def styles_of(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each impl."""
    impls = dict.fromkeys(row.impl for row in rows)
    others = [impl for impl in impls if impl not in OWN]
    found = {impl: style for impl, style in OWN.items() if impl in impls}
    return found | {impl: PEERS[place % len(PEERS)] for place, impl in enumerate(others)}


def panels_of(rows: Sequence[Row]) -> dict[Panel, list[Row]]:
    """Rows by panel."""
    found: dict[Panel, list[Row]] = {}
    for row in rows:
        size = size_letter(list(row.shape))
        kind = row.case
        for name, value in row.shape.items():
            kind = kind.replace(f"{name}{value}", "")
        letters = tuple(item for item in row.shape.items() if item[0] != size)
        found.setdefault(Panel(kind.strip("_").replace("_", " "), row.dtype, letters), []).append(row)
    return found


def split(rows: Sequence[Row]) -> tuple[dict[Panel, list[Row]], list[Row]]:
    """The panels with enough sizes for lines, and the rows of the rest."""
    panels = panels_of(rows)
    lines = {panel: own for panel, own in panels.items() if len({row.case for row in own}) >= FEWEST_POINTS}
    return lines, [row for panel, own in panels.items() if panel not in lines for row in own]


def height(rows: Sequence[Row], name: str) -> float:
    """The height of a pass in inches."""
    lines, rest = split([row for row in rows if row.pass_ == name])
    return 0.4 + 2.4 * ceil(len(lines) / MOST_COLUMNS) + (2.4 if rest else 0)


def width(rows: Sequence[Row]) -> float:
    """The width of the figure in inches, for panels side by side and all groups of bars."""
    lines, rest = split(rows)
    bars = len({(row.case, row.impl) for row in rest})
    return max(7.0, 2.3 * min(MOST_COLUMNS, len(lines)), 1.2 * len({row.case for row in rest}), 0.3 * bars)


def draw_pass(part: SubFigure, rows: Sequence[Row], speeds: Speeds, styles: dict[str, tuple[str, str]]) -> None:
    """Draw the panels of a pass and the bars below them; those of the same unit and scale share the vertical axis."""
    lines, rest = split(rows)
    shared: dict[tuple[str, bool], Axes] = {}

    def add(cell: Any, unit: str, wide: bool) -> Axes:
        axes = part.add_subplot(cell, sharey=shared.get((unit, wide)))
        shared.setdefault((unit, wide), axes)
        return axes

    columns = max(1, min(MOST_COLUMNS, len(lines)))
    line_rows = ceil(len(lines) / columns)
    grid = part.add_gridspec(line_rows + bool(rest), columns)
    before = ""
    for place, (panel, own) in enumerate(lines.items()):
        unit, heights = rates(own, speeds)
        wide = max(heights) > WIDE * min(heights)
        axes = add(grid[place // columns, place % columns], unit, wide)
        draw_lines(axes, own, heights, styles)
        axes.set_title(panel.title)
        first = place % columns == 0 or unit != before
        before = unit
        label(axes, own, speeds, unit, min(heights) if wide else None, names_unit=first)
    if rest:
        unit, heights = rates(rest, speeds)
        axes = add(grid[line_rows, :], unit, False)
        draw_bars(axes, rest, heights, styles)
        label(axes, rest, speeds, unit, None, names_unit=True)


def rates(rows: Sequence[Row], speeds: Speeds) -> tuple[str, list[float]]:
    """The speed of each row in their common unit; the percentage of the limit if their units differ."""
    found = [speed for row in rows if (speed := speeds.of(row))]
    if len(units := {unit for _, unit in found}) == 1:
        return units.pop(), [value for value, _ in found]
    return PERCENT, [100 * (row.fraction or 0) for row in rows]


def draw_lines(axes: Axes, rows: Sequence[Row], heights: Sequence[float], styles: dict[str, tuple[str, str]]) -> None:
    """Draw speed against size, a line for each impl; ours above the others."""
    size = size_letter(list(rows[0].shape)) or next(iter(rows[0].shape))
    for impl, (colour, marker) in styles.items():
        points = sorted((row.shape[size], y) for row, y in zip(rows, heights, strict=True) if row.impl == impl)
        own = impl in OWN
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5 if own else 4,
                      linewidth=2.2 if own else 1.2, zorder=3 if own else 2)  # fmt: skip
    sizes = sorted({row.shape[size] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [short(value) for value in sizes])
    axes.minorticks_off()
    axes.set_xlabel(size)


def draw_bars(axes: Axes, rows: Sequence[Row], heights: Sequence[float], styles: dict[str, tuple[str, str]]) -> None:
    """Draw a group of bars for each case, in the order of the legend, each with its time above it."""
    cases = {row.case: row for row in rows}
    several = len({row.dtype for row in rows}) > 1
    width = 0.8 / len(styles)
    for place, case in enumerate(cases):
        bars = {row.impl: (y, row) for row, y in zip(rows, heights, strict=True) if row.case == case}
        present = [impl for impl in styles if impl in bars]
        for rank, impl in enumerate(present):
            middle = place + (rank - (len(present) - 1) / 2) * width
            y, row = bars[impl]
            axes.bar(middle, y, width * 0.92, color=styles[impl][0], zorder=2)
            time = milliseconds(row.device_ms or 0)
            axes.annotate(time, (middle, y), xytext=(0, 1.5), textcoords="offset points", ha="center", fontsize=6,
                          color="#444444")  # fmt: skip
    axes.set_xticks(range(len(cases)), [bar_label(row, several) for row in cases.values()])
    axes.set_xlim(-0.6, len(cases) - 0.4)
    axes.tick_params(axis="x", length=0)
    axes.annotate("above each bar: ms", (1, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=7.5,
                  color="#444444")  # fmt: skip


def bar_label(row: Row, names_dtype: bool = False) -> str:
    """The kind of a case, its letters, two on a line, and with `names_dtype` its dtype."""
    kind = next(iter(panels_of([row]))).kind
    letters = [f"{name} {short(value)}" for name, value in row.shape.items()]
    lines = ["  ".join(letters[start : start + 2]) for start in range(0, len(letters), 2)]
    return "\n".join([*([kind] if kind else []), *lines, *([row.dtype] if names_dtype else [])])


def label(axes: Axes, rows: Sequence[Row], speeds: Speeds, unit: str, lowest: float | None, names_unit: bool) -> None:
    """Draw the limit's line, the unit and the grid; the axis is logarithmic if the lowest speed is passed."""
    limit = speeds.limit(rows[0]) if unit != PERCENT else None
    top = limit[0] if limit else 100.0
    axes.axhline(top, color="#444444", linestyle="--", linewidth=1, zorder=1)
    if lowest is None:
        axes.set_ylim(0, 1.12 * top)
    else:
        axes.set_yscale("log")
        axes.set_ylim(0.7 * lowest, 1.5 * top)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    if names_unit:
        axes.set_ylabel(unit)
        names = " or ".join(dict.fromkeys(LIMIT_NAMES.get(row.bound or "", "limit") for row in rows))
        text = f"{names}: {top:,.0f} {unit}" if limit else f"limit: {names}"
        axes.annotate(text, (0.02, top), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
                      fontsize=7.5, color="#444444")  # fmt: skip


def milliseconds(value: float) -> str:
    """A time with two or three significant digits."""
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def short(value: int) -> str:
    """A size with a binary suffix: 4096 as 4K."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if value >= unit and value % unit == 0:
            return f"{value // unit}{letter}"
    return str(value)
