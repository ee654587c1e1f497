"""Measures the algorithms of scan_algorithms.py on this machine's CPU, and draws the results."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from os import cpu_count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

Array = Any
Scan = Callable[[Array, Array], Array]
Draw = Callable[[np.random.Generator, tuple[int, int]], tuple[np.ndarray, np.ndarray]]

FLOAT32 = 2.0**-24  # half a unit in the last place of 1
BFLOAT16 = 2.0**-9
CHANNELS = 32  # total over all kinds of input

STYLES = {
    "linear_scan": ("#d1495b", "o"),
    "sequential": ("#444444", "s"),
    "Hillis-Steele": ("#30638e", "^"),
    "packed": ("#7fb2d9", "v"),
    "Blelloch": ("#00798c", "D"),
    "lax.associative_scan": ("#4f772d", "P"),
    "chunked": ("#7b5ea7", "X"),
    "Heinsen": ("#edae49", "o"),
    "Heinsen, complex": ("#b3661a", "d"),
}
LOOK: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


# Inputs


def decays(low: float, high: float) -> Draw:
    """Decays between low and high, inputs in (0, 1)."""
    return lambda rng, shape: (rng.uniform(low, high, shape), rng.uniform(0, 1, shape))


def signed(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Both signs."""
    return rng.uniform(-1, 1, shape), rng.standard_normal(shape)


def with_zeros(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Decays of exactly 0 at one step in ten."""
    a, b = decays(0, 1)(rng, shape)
    return np.where(rng.uniform(size=shape) < 0.1, 0, a), b


# Decays in (0, 1) are at least 1e-6; exact zeros are a kind of their own.
LONG: Mapping[str, Draw] = {
    "a in (0, 1), b > 0": decays(1e-6, 1),
    "a in (0.99, 1), b > 0": decays(0.99, 1),
    "a = 1, b > 0": decays(1, 1),
    "a in (-1, 1), b of both signs": signed,
}
SHORT: Mapping[str, Draw] = {
    "decays in (0, 1)": decays(1e-6, 1),
    "decays exactly 1": decays(1, 1),
    "decays exactly 0, one in ten": with_zeros,
    "negative decays and inputs": signed,
}


def drawn(kinds: Mapping[str, Draw], length: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 a and b of shape (length, CHANNELS), with a block of columns for each kind."""
    rng = np.random.default_rng(0)
    pairs = [draw(rng, (length, CHANNELS // len(kinds))) for draw in kinds.values()]
    a, b = (np.concatenate(column, 1, dtype=np.float32) for column in zip(*pairs, strict=True))
    return a, b


def columns_of(kinds: Mapping[str, Draw]) -> dict[str, tuple[slice, slice]]:
    """The columns of each kind."""
    each = CHANNELS // len(kinds)
    return {kind: np.s_[:, place * each : (place + 1) * each] for place, kind in enumerate(kinds)}


def to_framework(framework: str, x: np.ndarray) -> Array:
    """x as an array of a framework."""
    return torch.from_numpy(x) if framework == "torch" else jnp.asarray(x)


# Errors


def error(h: np.ndarray, exact: np.ndarray) -> float:
    """The largest error over the largest state."""
    return float(np.abs(h - exact).max() / np.abs(exact).max())


def errors(scans: Mapping[str, Scan], exact: Scan, longest: int) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """(length, error) of every algorithm for every kind of input, in PyTorch and float32, against `exact` in float64.

    Also the least error of Heinsen's: half a unit in the last place of its logarithms.
    """
    a, b = drawn(LONG, longest)
    states = exact(torch.from_numpy(a).double(), torch.from_numpy(b).double()).numpy()
    logarithms = np.abs(np.cumsum(np.log(a.astype(np.complex128)), 0))
    found: dict[str, dict[str, list[tuple[int, float]]]] = {kind: {} for kind in LONG}
    for length in powers(256, 8, longest):
        results = {name: scan(*(torch.from_numpy(x[:length]) for x in (a, b))).numpy() for name, scan in scans.items()}
        for kind, own in columns_of(LONG).items():
            values = {name: error(h[own], states[:length][own]) for name, h in results.items()}
            values["lost"] = FLOAT32 * float(logarithms[:length][own].max())
            for name, value in values.items():
                found[kind].setdefault(name, []).append((length, value))
    return found


def facts(scans: Mapping[str, Mapping[str, Scan]], exact: Scan, length: int = 1024) -> dict[str, dict[str, str]]:
    """The error of every algorithm for every kind of input, the larger one of both frameworks, or the share of NaNs."""
    a, b = drawn(SHORT, length)
    states = exact(torch.from_numpy(a).double(), torch.from_numpy(b).double()).numpy()
    results: dict[str, list[np.ndarray]] = {}
    for framework, own in scans.items():
        for name, scan in own.items():
            results.setdefault(name, []).append(
                np.asarray(scan(to_framework(framework, a), to_framework(framework, b)))
            )
    return {
        name: {kind: verdict([h[own] for h in hs], states[own]) for kind, own in columns_of(SHORT).items()}
        for name, hs in results.items()
    }


def verdict(results: Sequence[np.ndarray], exact: np.ndarray) -> str:
    """The largest error, or the share of NaNs."""
    lost = max(float(np.isnan(h).mean()) for h in results)
    return f"NaN: {lost:.0%}" if lost else f"{max(error(h, exact) for h in results):.0e}"


# Times


def times(scans: Mapping[str, Mapping[str, Scan]], longest: int) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """(length, milliseconds) of every algorithm in every framework; and of a + b, which moves the least bytes."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for framework, own in scans.items():
        for length in powers(64, 8, longest):
            a, b = (to_framework(framework, x) for x in drawn({"": decays(0.5, 1)}, length))
            for name, scan in {**own, "a + b": lambda a, b: a + b}.items():
                found.setdefault(framework, {}).setdefault(name, []).append((length, milliseconds(scan, a, b)))
    return found


def milliseconds(run: Scan, a: Array, b: Array) -> float:
    """The median of at least three runs; more while they are short."""
    jax.block_until_ready(run(a, b))
    found: list[float] = []
    while len(found) < 3 or sum(found) < 0.05:
        start = perf_counter()
        jax.block_until_ready(run(a, b))
        found.append(perf_counter() - start)
    return 1e3 * median(found)


def powers(shortest: int, factor: int, longest: int) -> list[int]:
    """Lengths from the shortest to the longest, each a factor longer than the one before, but for the last."""
    lengths = []
    while shortest < longest:
        lengths.append(shortest)
        shortest *= factor
    return [*lengths, longest]


# Figures


def draw_errors(found: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], path: Path) -> None:
    """Error against length, a panel for each kind of input; Heinsen's in complex numbers only if the real one fails."""
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(11.5, 4.0), dpi=150, layout="constrained")
        panels = list(figure.subplots(1, len(found), sharey=True))
        for axes, (kind, lines) in zip(panels, found.items(), strict=True):
            axes.set(title=kind, xlabel="length T", yscale="log", ylim=(2e-8, 1e-1))
            for value, label, side in ((FLOAT32, "2⁻²⁴: float32", -9), (BFLOAT16, "2⁻⁹: bfloat16", 3)):
                axes.axhline(value, color="#999999", linewidth=0.8, linestyle=":")
                note(axes, label, (0.02, value), "#777777", xycoords=("axes fraction", "data"), xytext=(0, side))
            axes.plot(*zip(*lines["lost"], strict=True), color="#999999", linestyle="--", linewidth=1)
            unneeded = "Heinsen, complex" if np.isfinite(lines["Heinsen"][-1][1]) else "Heinsen"
            draw_lines(axes, {name: points for name, points in lines.items() if name != unneeded})
        panels[0].set_ylabel("largest error / largest state")
        finish(figure, panels, "2⁻²⁴ |s|: the rounding of Heinsen's logarithm", path)


def draw_times(found: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], path: Path) -> None:
    """Time against length, a panel for each framework."""
    names = {"torch": f"PyTorch {torch.__version__}, eager, one thread", "jax": f"JAX {jax.__version__}, jit"}
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(8.4, 4.3), dpi=150, layout="constrained")
        figure.suptitle(f"{CHANNELS} channels, float32, {machine()}", fontsize=9)
        panels = list(figure.subplots(1, len(found), sharey=True))
        for axes, (framework, lines) in zip(panels, found.items(), strict=True):
            axes.set(title=names[framework], xlabel="length T", yscale="log")
            axes.plot(*zip(*lines["a + b"], strict=True), color="#999999", linestyle="--", linewidth=1)
            draw_lines(axes, lines)
        panels[0].set_ylabel("milliseconds")
        finish(figure, panels, "a + b: the least bytes, no recurrence", path)


def draw_bytes(words: Mapping[str, Callable[[int], float]], path: Path) -> None:
    """Bytes for each state against length, from the formulas; every line labelled at its end."""
    lengths = [2**n for n in range(6, 21)]
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.4, 3.6), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        named: dict[int, list[str]] = {}
        for place, (name, count) in enumerate(words.items()):
            values = [4 * count(length) for length in lengths]
            width = 2.4 if name == "linear_scan" else 1.4
            axes.plot(lengths, values, color=STYLES[name][0], linewidth=width, zorder=3 - place / 10)
            named.setdefault(round(values[-1]), []).append(name)
        for value, names in named.items():
            text, colour = f"{', '.join(names)}: {value}", STYLES[names[0]][0]
            note(axes, text, (lengths[-1], value), colour, xytext=(5, 0), va="center", fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set(xlabel="length T", ylabel="bytes moved for each state, float32", xlim=(lengths[0], lengths[-1]))
        axes.set_yticks([8 * 2**n for n in range(7)], [str(8 * 2**n) for n in range(7)])
        axes.minorticks_off()
        figure.savefig(path)


def draw_lines(axes: Any, lines: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """A line for each algorithm, in its own style."""
    for name, (colour, marker) in STYLES.items():
        if name in lines:
            own = {"linewidth": 2.2, "zorder": 4} if name == "linear_scan" else {"linewidth": 1.3}
            axes.plot(*zip(*lines[name], strict=True), color=colour, marker=marker, markersize=4, label=name, **own)
    axes.set_xscale("log", base=2)
    axes.set_xticks([length for length, _ in next(iter(lines.values()))])
    axes.minorticks_off()


def note(axes: Any, text: str, place: tuple[float, float], colour: str, **options: Any) -> None:
    """Small text beside a point."""
    options = {"textcoords": "offset points", "fontsize": 7, "annotation_clip": False, **options}
    axes.annotate(text, place, color=colour, **options)


def finish(figure: Figure, panels: Sequence[Any], dashed: str, path: Path) -> None:
    """Add the legend of all lines, and write the file."""
    handles = {line.get_label(): line for axes in panels for line in axes.get_lines() if line.get_marker() != "None"}
    ordered = [handles[name] for name in STYLES if name in handles]
    ordered += panels[0].plot([], [], color="#999999", linestyle="--", linewidth=1, label=dashed)
    figure.legend(handles=ordered, loc="outside lower center", ncols=4)
    figure.savefig(path)


# Text


def machine() -> str:
    """The machine of the measurements."""
    return f"CPU ({platform.machine()}, {cpu_count()} cores)"


def table(found: Mapping[str, Mapping[str, str]]) -> str:
    """A Markdown table of the facts."""
    kinds = list(next(iter(found.values())))
    rows = [["", *kinds], ["---", *["---:"] * len(kinds)]]
    rows += [[name, *cells.values()] for name, cells in found.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


BEGIN, END = "<!-- facts: written by examples/scan_algorithms.py --page -->", "<!-- end of facts -->"


def publish(out: Path, page: Path) -> None:
    """Write the table between a page's two marks, and the figures beside the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{(out / 'facts.md').read_text()}{END}{after}")
    for figure in out.glob("scan_*.png"):
        (page.parent / figure.name).write_bytes(figure.read_bytes())
