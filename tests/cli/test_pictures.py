"""The pictures of the committed results: as wide as a page, no text on another, and what was measured when."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from retrograd.bench.drawing import picture_of
from retrograd.bench.results import LIMITS, Row, latest, read

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.text import Text

from retrograd.bench.peers import peers
from retrograd.bench.picture.styles import styles_of
from retrograd.bench.plot import figure_of
from retrograd.ops.names import NAMES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
drawn, draw_generation, draw_models, generate, models = (
    import_module(name) for name in ("draw", "draw_generation", "draw_models", "generate", "models")
)

PIXELS = 1800  # twice the width of a page
FILES = [
    path
    for folder in sorted((ROOT / "benchmarks" / "results").iterdir())
    for path in (folder / f"{name}.jsonl" for name in drawn.FILES)
    if path.exists()
]
PICTURES = [
    (path, framework)
    for path in FILES
    for framework in ("torch", "jax")
    if any(row.framework == framework and row.op != LIMITS for row in read(path))
]
MODELS, GENERATED = (
    sorted((ROOT / "benchmarks" / "results").glob(f"*/{script.ROWS}")) for script in (models, generate)
)


def texts_of(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn."""
    found: list[Text] = []
    original = Text.draw

    def draw(self: Text, *arguments: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found.append(self)
        original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        figure.draw_without_rendering()
    return iter(found)


def check(figure: Figure, versions: set[str], days: set[str]) -> str:
    """Assert what every picture promises, and return its text."""
    assert figure.get_figwidth() * figure.dpi <= PIXELS
    boxes = {text: text.get_window_extent() for text in texts_of(figure)}
    for text, box in boxes.items():
        assert float(text.get_fontsize()) >= 7.5
        assert figure.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0, text
        assert box.y1 <= figure.bbox.y1, text
    met = [(a, b) for (a, one), (b, other) in combinations(boxes.items(), 2) if one.overlaps(other)]
    assert not met
    said = " ".join(text.get_text() for text in boxes)
    assert not {version for version in versions if version not in said}
    assert not {day for day in days if day not in said}
    return said


@pytest.mark.parametrize(("path", "framework"), PICTURES, ids=lambda value: getattr(value, "stem", value))
def test_pictures_of_the_results_can_be_read(path: Path, framework: str) -> None:
    rows = [row for row in latest(read(path)) if row.framework == framework]
    timed = [row for row in rows if row.op != LIMITS and row.fraction is not None]
    named: defaultdict[str, set[str]] = defaultdict(set)
    for name, version in (item for row in timed for item in row.versions.items()):
        named[name].add(version)
    versions = {f"{name} {' and '.join(sorted(found))}" for name, found in named.items()}
    said = check(figure_of(rows, framework), versions, {row.date[:10] for row in timed})
    assert {row.gpu for row in timed} == {gpu for gpu in {row.gpu for row in timed} if gpu in said}
    over = any((row.fraction or 0) > 1 and row.bound == "bytes" for row in timed)
    assert over == ("reads more than it writes" in said)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name)
def test_the_picture_of_the_models_can_be_read(path: Path) -> None:
    rows = rows_of(path)
    versions = {f"{name} {version}" for row in rows for name, version in row["versions"].items()}
    said = check(draw_models.figure_of(rows), versions, {row["date"][:10] for row in rows})
    assert rows[0]["gpu"] in said
    for row in rows:  # a batch that is not the usual one stands at its bar
        usual = draw_models.MODELS[row["case"]].batch
        assert row["shape"]["B"] == usual or f"GiB, B {row['shape']['B']}" in said


def generated_rows() -> list[dict[str, Any]]:
    """Rows of every model, batch and implementation, with times and bytes that are not measured but wide as text."""
    common = {
        "op": "generate",
        "device_ms": 123.4567,
        "limit_ms": 1.0,
        "share": 0.0081,
        "weight_bytes": 123456789,
        "state_read_bytes": 123456789000,
        "state_written_bytes": 1234,
        "gpu": "NVIDIA H100 80GB HBM3",
        "versions": {"retrograd": "0.1.0", "torch": "2.99.1", "transformers": "5.24.0"},
        "commit": "0000000",
        "date": "2031-05-06T00:00:00Z",
    }
    token = [
        {**common, "pass": "token", "case": model, "impl": impl, "shape": {"B": batch}, "wall_ms": place + 0.1}
        for model in draw_generation.MODELS
        for batch in (1, 64)
        for place, impl in enumerate(draw_generation.ORDER)
    ]
    ratios = [
        {**common, "pass": which, "case": model, "impl": impl, "shape": {"B": 8, "T": 8192}, "wall_ms": 1.0, field: 1.2}
        for which, field in (("prefill", "over_forward"), ("train", "over_not_exact"))
        for model in draw_generation.MODELS
        for impl in ("retrograd", "retrograd, exact")
        if which == "prefill" or "exact" in impl
    ]
    return [{"op": "limits"}, *token, *ratios]


@pytest.mark.parametrize("rows", [generated_rows(), *map(rows_of, GENERATED)], ids=lambda rows: rows[-1]["gpu"])
def test_the_picture_of_generation_can_be_read(rows: list[dict[str, Any]]) -> None:
    shown = [row for row in rows if row["op"] == "generate"]
    versions = {f"{name} {version}" for row in shown for name, version in row["versions"].items()}
    said = check(draw_generation.figure_of(rows), versions, {row["date"][:10] for row in shown})
    assert shown[0]["gpu"] in said
    assert all(f"{row['case']}, B {row['shape']['B']}:" in said for row in shown if row["pass"] == "token")
    assert all(f"{row['case']} {row['over_forward']:.2f}" in said for row in shown if "over_forward" in row)


@pytest.mark.parametrize("path", [*dict(PICTURES), *MODELS, *GENERATED], ids=lambda path: path.stem)
def test_the_pictures_are_there_and_as_wide_as_a_page(path: Path) -> None:
    frameworks = [framework for own, framework in PICTURES if own == path] or ["torch"]
    for framework in frameworks:
        head = picture_of(path, framework).read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert int.from_bytes(head[16:20], "big") <= PIXELS


def other_run(row: Row, peer: str) -> Row:
    """A row of a peer that nobody has seen, of a later run."""
    installed = {**row.versions, "torch": "2.99.1", peer: "7.8.9"}
    return replace(row, impl=peer, versions=installed, commit="0000000", date="2031-05-06T00:00:00Z")


def test_rows_of_unknown_peers_and_of_several_runs_are_drawn() -> None:
    rows = read(ROOT / "benchmarks" / "results" / "h200" / "attention.jsonl")
    own = [row for row in rows if row.impl == "retrograd" and row.framework == "torch"]
    unknown = ("a_peer_with_a_long_name", "tokamax", "cudnn-frontend", "liger-fused")
    more = [other_run(row, peer) for row in own for peer in unknown]
    versions = {"torch 2.11.0 and 2.99.1", *(f"{peer} 7.8.9" for peer in unknown)}
    said = check(figure_of([*rows, *more], "torch"), versions, {own[0].date[:10], "2031-05-06 (0000000)"})
    assert all(peer in said for peer in unknown)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("op", NAMES)
def test_a_peer_has_its_own_style_which_is_the_same_in_every_picture(op: str, framework: str) -> None:
    names = {"retrograd", *(peer.name for peer in peers(op, framework))}
    styles = styles_of(names)
    assert len(set(styles.values())) == len(names)
    assert styles == {name: styles_of([name])[name] for name in names}


def test_a_name_that_only_begins_with_the_letters_of_another_is_no_variant_of_it() -> None:
    styles = styles_of(["fla", "fla.gluon", "flashinfer"])
    assert styles["fla.gluon"] == replace(styles["fla"], filled=False)
    assert styles["flashinfer"].colour != styles["fla"].colour


def test_the_order_of_a_legend_does_not_depend_on_that_of_the_file() -> None:
    names = ["fla", "new", "fla.gluon", "newer", "retrograd", "newest"]
    assert list(styles_of(names)) == ["retrograd", "fla", "fla.gluon", "new", "newer", "newest"]
    assert list(styles_of(reversed(names)).items()) == list(styles_of(names).items())
    assert len(set(styles_of(names).values())) == len(names)
