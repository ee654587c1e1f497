"""The algorithms of examples/scan_algorithms.py against the recurrence in float64, in both frameworks; and its page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "annotated" / "scan.md"
LENGTHS = (1, 2, 3, 7, 64, 129, 500)
JAX_LENGTHS = (1, 7, 129)
EXACT: tuple[str, ...] = ("sequential", "Hillis-Steele", "packed", "Blelloch", "chunked", "lax.associative_scan")
LOGARITHMIC = ("Heinsen", "Heinsen, complex")
FLOAT32 = 2.0**-24

for needed in ("jax", "matplotlib", "typer"):
    pytest.importorskip(needed)
sys.path.insert(0, str(ROOT / "examples"))
jax, scan = import_module("jax"), import_module("scan_algorithms")
if scan.linear_scan is not None:
    EXACT += ("linear_scan",)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads, as the script sets it to one for timings."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(kind: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Decays of one kind and inputs of both signs."""
    rng = np.random.default_rng(length)
    shape = (length, 3)
    a, b = rng.uniform(0.01, 1, shape), rng.standard_normal(shape)
    if kind == "zeros":
        a = np.where(rng.uniform(size=shape) < 0.2, 0, a)
    if kind == "ones":
        a = np.where(rng.uniform(size=shape) < 0.5, 1, a)
    if kind == "all one":
        a = np.ones(shape)
    if kind == "signs":
        a = a * np.sign(rng.standard_normal(shape))
    return a.astype(np.float32), b.astype(np.float32)


def states(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The recurrence, step by step, in float64."""
    h, found = np.zeros(b.shape[1:]), []
    for a_t, b_t in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
        h = a_t * h + b_t
        found.append(h)
    return np.stack(found)


def run(name: str, framework: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One algorithm in one framework."""
    if framework == "torch":
        return scan.ALGORITHMS[name].run(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return np.asarray(jax.jit(scan.ALGORITHMS[name].run)(jax.numpy.asarray(a), jax.numpy.asarray(b)))


def places(names: tuple[str, ...]) -> list[Any]:
    """Each algorithm in each of its frameworks."""
    return [(name, framework) for name in names for framework in scan.ALGORITHMS[name].frameworks]


@pytest.mark.parametrize("kind", ["random", "zeros", "ones", "all one", "signs"])
@pytest.mark.parametrize(("name", "framework"), places(EXACT))
def test_against_float64(name: str, framework: str, kind: str) -> None:
    for length in LENGTHS if framework == "torch" else JAX_LENGTHS:
        a, b = drawn(kind, length)
        exact = states(a, b)
        h = run(name, framework, a, b)
        assert h.dtype == np.float32
        assert h.shape == b.shape
        # Two roundings a step, each of at most half a unit in the last place of sum |b|, where nothing decays.
        bound = 2 * FLOAT32 * length * np.abs(b).sum(0) if kind == "all one" else 16 * FLOAT32 * np.abs(exact).max()
        assert (np.abs(h - exact) <= bound).all(), (length, np.abs(h - exact).max())


@pytest.mark.parametrize(("name", "framework"), places(EXACT))
def test_decays_of_zero_and_one_are_exact(name: str, framework: str) -> None:
    a, b = drawn("zeros", 129)
    assert (run(name, framework, a, b)[a == 0] == b[a == 0]).all()
    whole = np.round(8 * b)
    assert (run(name, framework, np.ones_like(a), whole) == np.cumsum(whole, 0)).all()


@pytest.mark.parametrize("name", ["sequential", "Hillis-Steele", "Blelloch", "chunked"])
def test_no_state_depends_on_later_steps(name: str) -> None:
    a, b = drawn("random", 500)
    assert (run(name, "torch", a[:129], b[:129]) == run(name, "torch", a, b)[:129]).all()


# Packed words


def test_a_word_is_two_floats() -> None:
    a, b = (torch.from_numpy(x) for x in drawn("signs", 64))
    words = scan.complex_of(a, b).view(torch.int64)
    assert words.element_size() == 8
    assert ((words & 0xFFFFFFFF).to(torch.int32) == a.view(torch.int32)).all()
    assert ((words >> 32).to(torch.int32) == b.view(torch.int32)).all()


@pytest.mark.parametrize("kind", ["random", "zeros", "signs"])
def test_packing_changes_no_bit(kind: str) -> None:
    a, b = drawn(kind, 129)
    assert run("packed", "torch", a, b).tobytes() == run("Hillis-Steele", "torch", a, b).tobytes()


# Heinsen's logarithms


@pytest.mark.parametrize(("name", "framework"), places(LOGARITHMIC))
def test_logarithms_lose_the_digits_of_their_sum(name: str, framework: str) -> None:
    for length in LENGTHS if framework == "torch" else JAX_LENGTHS:
        a, b = drawn("random", length)
        b = np.abs(b)
        exact = states(a, b)
        lost = FLOAT32 * max(1, np.abs(np.log(a).sum(0)).max())
        assert np.abs(run(name, framework, a, b) - exact).max() <= 16 * lost * np.abs(exact).max()


def test_long_sequences_lose_digits() -> None:
    a, b = drawn("random", 20_000)
    b = np.abs(b)
    exact = states(a, b)
    error = {name: np.abs(run(name, "torch", a, b) - exact).max() / exact.max() for name in ("Heinsen", "sequential")}
    assert error["Heinsen"] > 1000 * error["sequential"]
    assert 2.0**-13 < error["Heinsen"] < 2.0**-7  # of 24 bits, about 10 are right


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_negative_values_need_complex_logarithms(framework: str) -> None:
    a, b = drawn("signs", 129)
    exact = states(a, b)
    assert np.isnan(run("Heinsen", framework, a, b)[-1]).all()
    assert np.abs(run("Heinsen, complex", framework, a, b) - exact).max() < 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize(("name", "framework"), places(LOGARITHMIC))
def test_a_decay_of_zero_is_lost_for_ever(name: str, framework: str) -> None:
    a, b = (np.abs(x) for x in drawn("random", 129))
    a[64] = 0
    h = run(name, framework, a, b)
    assert np.isfinite(h[:64]).all()
    assert np.isnan(h[64:]).all()


@pytest.mark.parametrize(
    ("name", "framework"), [("Heinsen", "torch"), ("Heinsen", "jax"), ("Heinsen, complex", "torch")]
)
def test_an_input_of_zero_is_not(name: str, framework: str) -> None:
    a, b = (np.abs(x) for x in drawn("random", 129))
    b[:3] = b[64:70] = 0
    np.testing.assert_allclose(run(name, framework, a, b), states(a, b), rtol=1e-3)


def test_but_in_complex_numbers_jax_loses_it() -> None:
    a, b = (np.abs(x) for x in drawn("random", 129))
    b[64:66] = 0
    assert np.isnan(run("Heinsen, complex", "jax", a, b)[66:]).all()


# Work, gradients, the script, the page


def test_combinations_are_as_many_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0
    combine = scan.combine

    def counting(earlier: Any, later: Any) -> Any:
        nonlocal counted
        counted += earlier[0].shape[0]
        return combine(earlier, later)

    monkeypatch.setattr(scan, "combine", counting)
    for length, levels in ((64, 6), (1024, 10)):
        a, b = (torch.from_numpy(x) for x in drawn("random", length))
        for run_, expected in ((scan.hillis_steele, length * levels - length + 1), (scan.blelloch, length - 1)):
            counted = 0
            run_(a, b)
            assert counted == expected


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_gradient_is_the_same_scan_backwards(framework: str) -> None:
    a, b, dh = (torch.from_numpy(x).double().requires_grad_() for x in (*drawn("random", 129), drawn("ones", 129)[1]))
    expected = torch.autograd.grad(scan.sequential(a, b), (a, b), dh)
    for name in ("sequential", "Blelloch", "chunked"):
        inputs: list[Any] = [x.detach().float() for x in (a, scan.sequential(a, b), dh)]
        if framework == "jax":
            inputs = [jax.numpy.asarray(x.numpy()) for x in inputs]
        gradients = jax.jit(scan.gradients, static_argnums=0) if framework == "jax" else scan.gradients
        for got, want in zip(gradients(scan.ALGORITHMS[name].run, *inputs), expected, strict=True):
            assert np.abs(np.asarray(got) - want.numpy()).max() <= 16 * FLOAT32 * want.abs().max().item()


def test_the_script_draws_and_fills_a_page(tmp_path: Path) -> None:
    app = scan.typer.Typer()
    app.command()(scan.main)
    page = tmp_path / "docs" / "scan.md"
    page.parent.mkdir()
    page.write_text(PAGE.read_text())
    done = CliRunner().invoke(app, ["--out", str(tmp_path / "out"), "--longest", "64", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "| sequential |" in done.output
    for name in ("scan_error.png", "scan_time.png", "scan_bytes.png"):
        assert (page.parent / name).read_bytes()[1:4] == b"PNG"
    outside = re.compile(r"<!-- facts.*<!-- end of facts -->", re.DOTALL)
    assert outside.sub("", page.read_text()) == outside.sub("", PAGE.read_text())
    assert (tmp_path / "out" / "facts.md").read_text() in page.read_text()


def test_the_page_quotes_the_code_and_shows_files_that_exist() -> None:
    text = PAGE.read_text()
    source = (ROOT / "examples" / "scan_algorithms.py").read_text()
    quoted = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert quoted
    for block in quoted:
        assert block.strip() in source, block
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (PAGE.parent / target).exists(), target
