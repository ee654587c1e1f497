"""Draws the rows of models.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from matplotlib.figure import Figure
from model_shapes import IMPLS, MODELS, SLOW

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

ORDER = (SLOW, *(impl for impl in IMPLS if impl != SLOW))
LINE, HEADING, BEHIND = 0.22, 0.26, 1.05  # inches; BEHIND a bar is its text


def draw(path: Path) -> None:
    """Draw the rows of a file beside it."""
    figure_of([json.loads(line) for line in path.read_text().splitlines()]).savefig(path.with_suffix(".png"))


def figure_of(rows: list[dict[str, Any]]) -> Figure:
    """Bars of tokens a second, with the peak memory behind them, a column for each model."""
    last = {(row["case"], row["impl"]): row for row in rows}
    shown = list(last.values())
    usual = {"B": BATCH, "T": TIME}
    title = f"Training of Mamba language models on {shown[0]['gpu']}"
    what = f"Tokens a second and peak memory of whole training steps, bf16, {described(usual)} where no other is named"
    measured = runs((row["date"], row["commit"]) for row in shown)
    below = f"{versions(row['versions'] for row in shown)}. Measured {measured}."
    parts = (
        paragraph(title, LARGE, weight="bold"),
        paragraph(what, colour=GREY),
        bars(last, usual),
        paragraph(below, SMALL, GREY),
    )
    return page(parts)


def bars(rows: dict[tuple[str, str], dict[str, Any]], usual: dict[str, int]) -> Part:
    """A line for each implementation, a column for each model."""
    cases = list(dict.fromkeys(case for case, _ in rows))
    impls = [impl for impl in ORDER if any((case, impl) in rows for case in cases)]
    names = max(inches(impl, SMALL) for impl in impls) + 0.12
    width = (WIDTH - 2 * MARGIN - names) / len(cases)

    def draw_bars(figure: Figure, top: float) -> None:
        for place, case in enumerate(cases):
            left = MARGIN + names + place * width
            text_at(figure, left, top, case, SMALL + 1, weight="bold")
            axes = axes_at(figure, left, top - HEADING, width - BEHIND, LINE * len(impls))
            own = [(number, rows[case, impl]) for number, impl in enumerate(impls) if (case, impl) in rows]
            colours = [RED if "retrograd" in row["impl"] else BLUE for _, row in own]
            drawn = axes.barh([number for number, _ in own], [row["tokens_s"] for _, row in own], 0.7, color=colours)
            axes.bar_label(drawn, [f" {note(row, usual)}" for _, row in own], fontsize=SMALL)
            axes.set(ylim=(len(impls) - 0.5, -0.5), xlim=(0, max(row["tokens_s"] for _, row in own)), xticks=[])
            axes.set_yticks(range(len(impls)), impls if place == 0 else [""] * len(impls))
            axes.tick_params(axis="y", length=0)
            axes.spines["bottom"].set_visible(False)

    return Part(HEADING + LINE * len(impls) + 0.12, draw_bars)


def note(row: dict[str, Any], usual: dict[str, int]) -> str:
    """Thousands of tokens a second, peak memory, and sizes that are not the usual ones."""
    others = {name: size for name, size in row["shape"].items() if size != usual[name]}
    speed = row["tokens_s"]
    words = [
        f"{speed / 1000:#.3g}k".replace(".k", "k") if speed >= 1000 else f"{speed}",
        f"{row['peak_gib']:.0f} GiB",
        *([described(others)] if others else []),
    ]
    return ", ".join(words)


def described(sizes: dict[str, int]) -> str:
    """Sizes as text, such as `B 8, T 2048`."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
