"""The metrics of a run, as JSON lines, and their plot."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METRICS, CURVE = "metrics.jsonl", "curve.png"
VERDICT = "bigram_bits_per_byte"  # only in the last row of a finished run
Row = Mapping[str, Any]


def append(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to the file."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> list[Row]:
    """The rows; a last line that a kill truncated is left out.

    Raises:
        ValueError: for a line that is no row.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
                int(row["step"])
            except (KeyError, TypeError, ValueError, RecursionError):
                raise ValueError(f"{path}: line {number} is no row of metrics") from None
            rows.append(row)
    return rows


def draw(rows: Sequence[Row], path: Path, *, title: str, bigram: float) -> None:
    """Draw bits per byte against bytes read: training, smoothed, and held out, with the bigram model's as a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    training = [(row["tokens"], row["bits_per_byte"]) for row in rows if "bits_per_byte" in row]
    held_out = [(row["tokens"], row["held_out_bits_per_byte"]) for row in rows if "held_out_bits_per_byte" in row]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    if training:
        tokens, bits = zip(*training, strict=True)
        axes.plot(tokens, bits, color="#8d96a3", linewidth=0.5, alpha=0.5)
        axes.plot(tokens, smoothed(bits), color="#30638e", linewidth=1.5, label="training, smoothed")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="#d1495b", markersize=4, label="held out")
    axes.axhline(bigram, color="#00798c", linestyle="--", label=f"bigram, held out: {bigram:.2f}")
    values = [bits for _, bits in (*training[len(training) // 50 :], *held_out)]
    axes.set_ylim(0.95 * min((*values, bigram)), 1.05 * max((*values, bigram)))
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.set_xlabel("text trained on")
    axes.set_ylabel("bits per byte")
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_suffix(".new")
    figure.savefig(temporary, dpi=150, format="png")
    os.replace(temporary, path)


def smoothed(values: Sequence[float], share: float = 0.01) -> list[float]:
    """Running mean, exponential, over about this share of the values."""
    keep = 1 - 1 / max(1.0, share * len(values))
    means, sum_, weight = [], 0.0, 0.0
    for value in values:
        sum_, weight = keep * sum_ + value, keep * weight + 1
        means.append(sum_ / weight)
    return means
