"""The documentation: its blocks run, its tables are those of the results, and a reader finds every page."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from blocks import ROOT, check_blocks

DOCS = ROOT / "docs"
# These show parts of the repository's sources.
OF_SOURCES = ("design.md", "annotated/scan.md")
PAGES = sorted(path for path in DOCS.rglob("*.md") if str(path.relative_to(DOCS)) not in OF_SOURCES)
TABLED = [ROOT / "README.md", *PAGES]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tools" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.docs
@each_page
def test_every_block_runs_as_it_stands_and_prints_what_it_says(page: Path) -> None:
    check_blocks([page])


@pytest.mark.parametrize("page", TABLED, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_the_results_and_of_the_declarations(page: Path, tables: ModuleType) -> None:
    assert tables.written(page.read_text()) == page.read_text(), "python docs/tools/tables.py writes them"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} <= set(listed)


@pytest.mark.parametrize("module", ["retrograd", "retrograd.jax", "retrograd.nn", "retrograd.jax.nn"])
def test_the_reference_has_all_that_is_public(module: str) -> None:
    if "jax" in module:
        pytest.importorskip("jax")
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: [\w.]*?(\w+)$", pages, re.MULTILINE))
    assert {name for name in importlib.import_module(module).__all__ if not name.startswith("_")} <= listed


@pytest.mark.docs
def test_the_site_asks_no_other_host_for_anything() -> None:
    """`make docs` has built it."""
    pages = sorted((ROOT / "build" / "site").rglob("*.html"))
    assert pages
    loaded = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(https?:[^"' >]+)""")
    assert not {address for page in pages for address in loaded.findall(page.read_text())}
