"""Writes the tables of the documentation: from the ops' declarations, and from the rows of benchmarks/results.

    python docs/tools/tables.py          # writes them into docs/ and the README
    python docs/tools/tables.py --check  # says which pages are not up to date

A page has a table between `<!-- table: speed rms_norm -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from retrograd.bench.results import LIMITS, Row, latest, read
from retrograd.core.spec import arguments, options
from retrograd.ops.infos import info

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
RESULTS = ROOT / "benchmarks" / "results"
FOLDERS = ("h200", "h100-80gb-hbm3")
MARKED = re.compile(r"(<!-- table: ([\w .*,-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
PASSES = {"fwd": "forward", "bwd": "backward"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def of_arguments(op: str) -> str:
    """The arguments and options of an op: name, default, what it is."""
    declared = info(op).op
    assert declared is not None
    call = declared.call
    rows = [
        (f"`{name}`", "`None`" if argument.optional else "required", _one_line(argument.doc))
        for name, argument in arguments(call).items()
    ]
    rows += [(f"`{name}`", f"`{option.default!r}`", _one_line(option.doc)) for name, option in options(call).items()]
    return table(("argument", "default", "meaning"), rows)


def of_speed(what: str) -> str:
    """The times of an op on an H200, or an H100 where it has not run on the former; of all cases, or by patterns.

    Each has our time, the share of the limit that it reaches, and the fastest peer's time as a multiple of ours.
    """
    op, *patterns = what.split()
    path = next(path for folder in FOLDERS if (path := RESULTS / folder / f"{op}.jsonl").exists())
    rows = [row for row in latest(read(path)) if row.op != LIMITS and row.device_ms]
    cases: dict[str, list[Row]] = {}
    for row in rows:
        wanted = not patterns or any(fnmatch(row.case, pattern) for pattern in patterns)
        if wanted and row.framework == "torch" and row.pass_ in PASSES:
            cases.setdefault(row.case, []).append(row)
    lines = []
    for case, found in cases.items():
        cells = [cell for name in PASSES for cell in _pass(row for row in found if row.pass_ == name)]
        if any(cells):
            lines.append((f"`{case}`", found[0].dtype, *cells))
    head = [cell for name in PASSES.values() for cell in (name, "fastest peer")]
    return table(("case", "dtype", *head), lines)


def _pass(rows: Iterable[Row]) -> tuple[str, str]:
    """Our time in one pass with its share of the limit, and the fastest peer with how many times as long it takes."""
    by_impl = {row.impl: row for row in rows if row.device_ms}
    own = by_impl.pop("retrograd", None)
    if own is None or own.device_ms is None:
        return "", ""
    share = "" if own.fraction is None else f", {own.fraction:.0%}"
    peers = sorted((row.device_ms or 0.0, impl) for impl, row in by_impl.items())
    peer = f"{peers[0][1]}, {peers[0][0] / own.device_ms:.2f} times" if peers else ""
    return f"{own.device_ms:.3g} ms{share}", peer


def of_versions(folder: str) -> str:
    """What the rows of a folder were measured with."""
    found: dict[str, set[str]] = {}
    for path in sorted((RESULTS / folder).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            for name, version in (("GPU", row["gpu"]), *row["versions"].items()):
                found.setdefault(name, set()).add(version)
    return table(("", "versions"), ((name, ", ".join(sorted(versions))) for name, versions in found.items()))


def of_models(what: str) -> str:
    """Whole training steps of the models in a folder, of those that fit patterns."""
    folder, *patterns = what.split()
    rows = {
        (row["case"], row["impl"]): row
        for row in _lines(RESULTS / folder / "models.jsonl")
        if any(fnmatch(row["case"], pattern) for pattern in patterns)
    }
    lines = [
        (case, impl, f"{row['device_ms']:.4g} ms", f"{row['peak_gib']:.1f} GiB")
        for (case, impl), row in sorted(rows.items())
    ]
    return table(("model", "implementation", "a step", "memory"), lines)


TRANSFORMERS = "transformers (its kernels)"
GENERATING = {
    "exact": ("retrograd, exact",),
    "not exact": ("retrograd",),
    "torch in a CUDA graph": ("torch, graphs",),
    TRANSFORMERS: ("transformers, mamba_ssm", "transformers"),
}
GENERATED = {
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "transformer": "transformer, 16 heads",
    "hybrid": "Mamba-2 with 3 layers of attention",
}


def of_generation(folder: str) -> str:
    """Milliseconds a token, a row for each model and number of sequences."""
    found = _generation(folder)
    lines = [(GENERATED[case], str(batch), *cells) for (batch, case), cells in found.items()]
    return table(("model", "sequences", *GENERATING, "bytes"), lines)


def of_generation_by_model(folder: str) -> str:
    """The same, a row for each model: times for the numbers of sequences stand side by side."""
    found = _generation(folder)
    lines = []
    for case, model in GENERATED.items():
        rows = [cells for (_, of), cells in found.items() if of == case]
        lines.append((model, *(", ".join(filter(None, cells)) for cells in zip(*rows, strict=True))))
    return table(("", *GENERATING, "bytes"), lines)


def _generation(folder: str) -> dict[tuple[int, str], list[str]]:
    """Number of sequences and model -> the time of each implementation, and of the bytes."""
    rows = {
        (row["shape"]["B"], row["case"], row["impl"]): row
        for row in _lines(RESULTS / folder / "generate.jsonl")
        if row.get("pass") == "token"
    }
    found = {}
    for batch in sorted({key[0] for key in rows}):
        for case in GENERATED:
            cells = []
            for name, impls in GENERATING.items():
                row = next((rows[key] for impl in impls if (key := (batch, case, impl)) in rows), None)
                of_kernels = f" ({_milliseconds(row['device_ms'])})" if row and name == TRANSFORMERS else ""
                cells.append(f"{_milliseconds(row['wall_ms'])}{of_kernels}" if row else "")
            limit = rows[batch, case, "retrograd"]["limit_ms"]
            found[batch, case] = [*cells, _milliseconds(limit)]
    return found


def _milliseconds(time: float) -> str:
    return f"{time:.2f}" if time < 10 else f"{time:.1f}"


def of_naive(what: str) -> str:
    """The kernels of examples/naive_*.py of an op and pass: times, shares of the limit, and whether bits repeat."""
    folder, op, which = what.split()
    rows = {
        (row["impl"], row["case"]): row
        for row in _lines(RESULTS / folder / "naive.jsonl")
        if (row["op"], row["pass"]) == (op, which)
    }
    cases = list(dict.fromkeys(case for _, case in rows))
    impls = sorted(dict.fromkeys(impl for impl, _ in rows))
    lines = []
    for impl in impls:
        found = [rows[impl, case] for case in cases]
        times = [f"{row['device_ms']:.3g} ms, {row['limit_ms'] / row['device_ms']:.0%}" for row in found]
        lines.append((impl, *times, "yes" if all(row["same_bits"] for row in found) else "no"))
    return table(("kernels", *(f"`{case}`" for case in cases), "same bits in two runs"), lines)


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a file that are no ops' rows."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _one_line(text: str) -> str:
    """A text of a declaration as a cell."""
    return " ".join(text.split()).replace("|", r"\|")


KINDS: dict[str, Callable[[str], str]] = {
    "arguments": of_arguments,
    "speed": of_speed,
    "versions": of_versions,
    "models": of_models,
    "generation": of_generation,
    "generation_by_model": of_generation_by_model,
    "naive": of_naive,
}


def written(page: str) -> str:
    """A page with its tables as they have to be."""

    def one(match: re.Match[str]) -> str:
        kind, what = match[2].split(maxsplit=1)
        return f"{match[1]}\n{KINDS[kind](what)}\n{match[3]}"

    return MARKED.sub(one, page)


def main() -> int:
    """Write the tables, or check them."""
    stale = []
    for path in PAGES:
        page = path.read_text()
        if (new := written(page)) != page:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(new)
    for path in stale:
        print(path.relative_to(ROOT))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
