"""Draws results: speed against size, one panel for each kind and width, with the limit; from the JSON lines alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure, SubFigure

from .results import LIMITS, Row, Speeds, latest
from .selection import size_letter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# retrograd stands out; the peers take the rest in the order in which the file has them. Safe for colour-blind eyes.
OWN = ("#d1495b", "o")
PEERS = (("#30638e", "s"), ("#00798c", "^"), ("#8d96a3", "D"), ("#edae49", "v"), ("#7b5ea7", "P"), ("#4f772d", "X"))
PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward and backward"}
MOST_COLUMNS = 6
FEWEST_POINTS = 3  # of a line; what has fewer sizes is drawn as bars


@dataclass(frozen=True)
class Panel:
    """What the rows of a panel share: the kind of case, and its letters but for the size."""

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
        path: where the picture goes.
        framework: `torch` or `jax`; the first row's by default.

    Raises:
        ValueError: there is nothing to draw.
    """
    timed = [row for row in rows if row.op != LIMITS and row.fraction is not None]
    timed = [row for row in timed if row.framework == (framework or timed[0].framework)]
    timed = [row for row in latest(timed) if row.gpu == timed[-1].gpu]
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
        installed = {name: version for row in timed for name, version in row.versions.items()}
        versions = ", ".join(f"{name} {version}" for name, version in installed.items())
        figure.suptitle(
            f"{first.op} on {first.gpu}, {first.dtype}, {first.framework}: cold L2, higher is better\n"
            f"{versions}, commit {first.commit}, {first.date[:10]}",
        )
        handles = [
            parts[0, 0].axes[0].plot([], [], color=c, marker=m, label=impl)[0] for impl, (c, m) in styles.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(styles), frameon=False)
        figure.savefig(path)


def styles_of(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each impl."""
    impls = dict.fromkeys(row.impl for row in rows)
    others = [impl for impl in impls if impl != "retrograd"]
    found = {"retrograd": OWN} if "retrograd" in impls else {}
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
    """Inches that a pass takes."""
    lines, rest = split([row for row in rows if row.pass_ == name])
    return 0.4 + 2.4 * ceil(len(lines) / MOST_COLUMNS) + (2.4 if rest else 0)


def width(rows: Sequence[Row]) -> float:
    """Inches for all panels side by side, and for all groups of bars."""
    lines, rest = split(rows)
    return max(7.0, 2.3 * min(MOST_COLUMNS, len(lines)), 1.2 * len({row.case for row in rest}))


def draw_pass(part: SubFigure, rows: Sequence[Row], speeds: Speeds, styles: dict[str, tuple[str, str]]) -> None:
    """The panels of a pass, and the bars below them; those of one unit share the vertical axis."""
    lines, rest = split(rows)
    shared: dict[str, Axes] = {}

    def add(cell: Any, own: Sequence[Row]) -> Axes:
        speed = speeds.of(own[-1])
        unit = speed[1] if speed else ""
        axes = part.add_subplot(cell, sharey=shared.get(unit))
        shared.setdefault(unit, axes)
        return axes

    columns = max(1, min(MOST_COLUMNS, len(lines)))
    line_rows = ceil(len(lines) / columns)
    grid = part.add_gridspec(line_rows + bool(rest), columns)
    for place, (panel, own) in enumerate(lines.items()):
        axes = add(grid[place // columns, place % columns], own)
        draw_lines(axes, own, speeds, styles)
        axes.set_title(panel.title)
        label(axes, own, speeds, names_unit=place % columns == 0)
    if rest:
        axes = add(grid[line_rows, :], rest)
        draw_bars(axes, rest, speeds, styles)
        label(axes, rest, speeds, names_unit=True)


def draw_lines(axes: Axes, rows: Sequence[Row], speeds: Speeds, styles: dict[str, tuple[str, str]]) -> None:
    """Speed against size, a line for each impl; ours above the others."""
    size = size_letter(list(rows[0].shape)) or next(iter(rows[0].shape))
    for impl, (colour, marker) in styles.items():
        points = sorted((row.shape[size], speed[0]) for row in rows if row.impl == impl if (speed := speeds.of(row)))
        own = impl == "retrograd"
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5 if own else 4,
                      linewidth=2.2 if own else 1.2, zorder=3 if own else 2)  # fmt: skip
    sizes = sorted({row.shape[size] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [short(value) for value in sizes])
    axes.minorticks_off()
    axes.set_xlabel(size)


def draw_bars(axes: Axes, rows: Sequence[Row], speeds: Speeds, styles: dict[str, tuple[str, str]]) -> None:
    """A group of bars for each case, in the order of the legend."""
    cases = {row.case: row for row in rows}
    width = 0.8 / len(styles)
    for place, case in enumerate(cases):
        heights = {row.impl: speed[0] for row in rows if row.case == case if (speed := speeds.of(row))}
        there = [impl for impl in styles if impl in heights]
        for rank, impl in enumerate(there):
            middle = place + (rank - (len(there) - 1) / 2) * width
            axes.bar(middle, heights[impl], width * 0.92, color=styles[impl][0], zorder=2)
    axes.set_xticks(range(len(cases)), [bar_label(row) for row in cases.values()])
    axes.set_xlim(-0.6, len(cases) - 0.4)
    axes.tick_params(axis="x", length=0)


def bar_label(row: Row) -> str:
    """The kind of a case and its letters, on two lines."""
    kind = next(iter(panels_of([row]))).kind
    return f"{kind}\n" * bool(kind) + "  ".join(f"{name} {short(value)}" for name, value in row.shape.items())


def label(axes: Axes, rows: Sequence[Row], speeds: Speeds, names_unit: bool) -> None:
    """The limit's line, the unit and the grid."""
    speed, limit = speeds.of(rows[-1]), speeds.limit(rows[-1])
    top = limit[0] if limit else 100.0
    axes.axhline(top, color="#444444", linestyle="--", linewidth=1, zorder=1)
    axes.set_ylim(0, 1.12 * top)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    if names_unit and speed:
        axes.set_ylabel(speed[1])
        name = {"bytes": "copy", "flops": "matrix product"}.get(rows[-1].bound or "", "limit") if limit else "limit"
        axes.annotate(f"{name}: {top:,.0f} {speed[1]}", (0.02, top), xycoords=("axes fraction", "data"),
                      xytext=(0, 2), textcoords="offset points", fontsize=7.5, color="#444444")  # fmt: skip


def short(value: int) -> str:
    """4096 as 4K."""
    return f"{value // 1024}K" if value >= 1024 and value % 1024 == 0 else str(value)
