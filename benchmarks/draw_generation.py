"""Draws the rows of generate.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from generation_shapes import EXACT, GRAPHS, MODELS, NN, PREFILL, READ, TOKEN, TRAIN, TRANSFORMERS, TRANSFORMERS_KERNELS
from matplotlib.figure import Figure

from retrograd.bench.picture.caption import runs, versions
from retrograd.bench.picture.page import (
    GREY,
    LARGE,
    MARGIN,
    SMALL,
    WIDTH,
    Part,
    axes_at,
    inches,
    page,
    paragraph,
    text_at,
)
from retrograd.bench.picture.styles import BLUE, RED

ORDER = (NN, READ, EXACT, GRAPHS, TRANSFORMERS_KERNELS, TRANSFORMERS)
LINE, HEADING, BEHIND = 0.22, 0.26, 2.5  # inches; BEHIND a bar is its text

Rows = list[dict[str, Any]]


def draw(path: Path) -> None:
    """Draw the rows of a file beside it."""
    figure_of([json.loads(line) for line in path.read_text().splitlines()]).savefig(path.with_suffix(".png"))


def figure_of(rows: Rows) -> Figure:
    """Bars of the time of a token for each model and batch, and lines about prefill and training."""
    own = [row for row in rows if row["op"] == "generate"]
    shown = list({(row["pass"], row["case"], row["shape"]["B"], row["impl"]): row for row in own}.values())
    gpus = " and ".join(dict.fromkeys(row["gpu"] for row in shown))
    measured = runs((row["date"], row["commit"]) for row in shown)
    return page(
        (
            paragraph(f"Generation on {gpus}", LARGE, weight="bold"),
            paragraph(
                "Milliseconds of a token for all sequences of a batch by the wall clock, bf16; in brackets the time of "
                "its kernels. The line is the time of the bytes that a token has to move, at the rate of a copy.",
                colour=GREY,
            ),
            *(bars(own) for own in cases([row for row in shown if row["pass"] == TOKEN])),
            *(paragraph(line) for line in others(shown)),
            paragraph(f"{versions(row['versions'] for row in shown)}. Measured {measured}.", SMALL, GREY),
        )
    )


def cases(rows: Rows) -> Iterator[Rows]:
    """The rows of each model and batch, in the order of generate.py."""
    for name in MODELS:
        for batch in sorted({row["shape"]["B"] for row in rows if row["case"] == name}):
            yield [row for row in rows if row["case"] == name and row["shape"]["B"] == batch]


def bars(rows: Rows) -> Part:
    """A line for each implementation of a model with a batch."""
    own = sorted(rows, key=lambda row: ORDER.index(row["impl"]))
    first = own[0]
    names = max(inches(impl, SMALL) for impl in ORDER) + 0.12
    width = WIDTH - 2 * MARGIN - names - BEHIND
    state = first["state_read_bytes"] + first["state_written_bytes"]
    moved = f"{size(first['weight_bytes'])} of weights, {size(state)} of state"
    title = f"{first['case']}, B {first['shape']['B']}: {moved}"

    def draw_bars(figure: Figure, top: float) -> None:
        text_at(figure, MARGIN, top, title, SMALL + 1, weight="bold")
        axes = axes_at(figure, MARGIN + names, top - HEADING, width, LINE * len(own))
        colours = [RED if "retrograd" in row["impl"] else BLUE for row in own]
        drawn = axes.barh(range(len(own)), [row["wall_ms"] for row in own], 0.7, color=colours)
        axes.bar_label(drawn, [f"  {note(row)}" for row in own], fontsize=SMALL)
        limits = [row["limit_ms"] for row in own if row.get("limit_ms") is not None]
        axes.set(ylim=(len(own) - 0.5, -0.5), xlim=(0, max([*limits, *(row["wall_ms"] for row in own)])), xticks=[])
        for limit in limits[:1]:
            axes.axvline(limit, color="black", linewidth=1)
        axes.set_yticks(range(len(own)), [row["impl"] for row in own])
        axes.tick_params(axis="y", length=0)
        axes.spines["bottom"].set_visible(False)

    return Part(HEADING + LINE * len(own) + 0.12, draw_bars)


def note(row: dict[str, Any]) -> str:
    """The time of a token, that of its kernels, and the limit's share of it."""
    words = f"{row['wall_ms']:.3g} ms"
    if row["device_ms"] is not None:
        words += f" ({row['device_ms']:.3g})"
    return words + (f", {row['share']:.0%} of the limit" if row.get("share") is not None else "")


def others(rows: Rows) -> Iterator[str]:
    """Prefill over the forward pass, and exact training over the other, of each model."""
    for which, field, said in (
        (PREFILL, "over_forward", "Prefill of {T:,} tokens over the forward pass of training on them"),
        (TRAIN, "over_not_exact", "A training step (forward and backward, B {B}, T {T:,}), exact over not exact"),
    ):
        found = [row for row in rows if row["pass"] == which and field in row]
        for impl in dict.fromkeys(row["impl"] for row in sorted(found, key=lambda row: ORDER.index(row["impl"]))):
            own = sorted((row for row in found if row["impl"] == impl), key=lambda row: MODELS.index(row["case"]))
            which_impl = f", {impl}" if which == PREFILL else ""
            ratios = ", ".join(f"{row['case']} {row[field]:.2f}" for row in own)
            yield f"{said.format(**own[0]['shape'])}{which_impl}: {ratios}."


def size(count: float) -> str:
    """Bytes as text."""
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if count >= one / 10:
            return f"{count / one:.2f} {unit}"
    return f"{count / 1e3:.2f} kB"
