"""Draws the rows of models.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
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
LINE, HEADING, BEHIND = 0.22, 0.26, 1.2  # inches; BEHIND a bar is its text


def draw(path: Path) -> None:
    """Draw the rows of a file beside it."""
    figure_of([json.loads(line) for line in path.read_text().splitlines()]).savefig(path.with_suffix(".png"))


def figure_of(rows: list[dict[str, Any]]) -> Figure:
    """Bars of tokens a second for each model, with the peak memory behind them."""
    last = {(row["case"], row["impl"]): row for row in rows}
    shown = list(last.values())
    gpus = " and ".join(dict.fromkeys(row["gpu"] for row in shown))
    measured = runs((row["date"], row["commit"]) for row in shown)
    used = "; ".join(versions([each]) for each in installations(row["versions"] for row in shown))
    below = f"{used}. Measured {measured}."
    return page(
        (
            paragraph(f"Training of language models on {gpus}", LARGE, weight="bold"),
            paragraph("Tokens a second and peak memory of whole training steps, bf16", colour=GREY),
            *(bars(case, [row for row in shown if row["case"] == case]) for case in cases(shown)),
            paragraph(below, SMALL, GREY),
        )
    )


def installations(found: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The versions that were installed together, as few sets as have one version of each package."""
    sets: list[dict[str, str]] = []
    for packages in found:
        for known in sets:
            if all(known.get(name, version) == version for name, version in packages.items()):
                known |= packages
                break
        else:
            sets.append(dict(packages))
    return sets


def cases(rows: list[dict[str, Any]]) -> list[str]:
    """The models that have rows, in the order of models.py."""
    return [name for name in MODELS if any(row["case"] == name for row in rows)]


def bars(case: str, rows: list[dict[str, Any]]) -> Part:
    """A line for each implementation of a model."""
    own = sorted(rows, key=lambda row: ORDER.index(row["impl"]))
    model = MODELS[case]
    usual = {"B": model.batch, "T": model.time}
    names = max(inches(impl, SMALL) for impl in IMPLS) + 0.12
    width = WIDTH - 2 * MARGIN - names - BEHIND
    size = f"{own[0]['parameters'] / 1e6:,.0f} million parameters, {described(usual)}"

    def draw_bars(figure: Figure, top: float) -> None:
        text_at(figure, MARGIN, top, f"{case}: {size}", SMALL + 1, weight="bold")
        axes = axes_at(figure, MARGIN + names, top - HEADING, width, LINE * len(own))
        colours = [RED if "retrograd" in row["impl"] else BLUE for row in own]
        drawn = axes.barh(range(len(own)), [row["tokens_s"] for row in own], 0.7, color=colours)
        axes.bar_label(drawn, [f" {note(row, usual)}" for row in own], fontsize=SMALL)
        axes.set(ylim=(len(own) - 0.5, -0.5), xlim=(0, max(row["tokens_s"] for row in own)), xticks=[])
        axes.set_yticks(range(len(own)), [row["impl"] for row in own])
        axes.tick_params(axis="y", length=0)
        axes.spines["bottom"].set_visible(False)

    return Part(HEADING + LINE * len(own) + 0.12, draw_bars)


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
