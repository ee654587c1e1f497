"""A new op is its folder, and its name in `ops/names.py`: `row_scale`, as CONTRIBUTING.md describes it, in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retrograd.opinfo.info import public_function

ROOT = Path(__file__).parents[2]
KEPT = ("tests/contract", "tests/fuzz", "tests/package/test_examples.py")
USE = """
import doctest
import retrograd, retrograd.jax
from retrograd.ops.infos import info

for function in (retrograd.row_scale, retrograd.jax.row_scale):
    (example,) = doctest.DocTestFinder().find(function, globs={})
    found = doctest.DocTestRunner().run(example)
    assert found.attempted and not found.failed
assert info("row_scale").torch is retrograd.row_scale
"""


def with_row_scale(folder: Path, *copied: str) -> Path:
    """A copy of the repository's folders and files, with the op."""
    for name in copied:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "tests/row_scale", folder / "retrograd/ops/row_scale")
    shutil.rmtree(folder / "tests/row_scale", ignore_errors=True)
    names = folder / "retrograd/ops/names.py"
    names.write_text(re.sub(r"\)\n$", ', "row_scale")\n', names.read_text()))
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ran = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
    return ran.stdout


def test_both_frameworks_have_its_function(tmp_path: Path) -> None:
    folder = with_row_scale(tmp_path, "retrograd", "tests/write_functions.py", "pyproject.toml")
    run(folder, "tests/write_functions.py")
    run(folder, "-c", USE)


def test_a_function_that_is_not_written_yet_says_who_writes_it() -> None:
    """And says it when it is called, so that the tests of other ops run."""
    function = public_function("retrograd.ops.torch_functions", "row_scale")
    with pytest.raises(
        NotImplementedError, match=r"^retrograd\.ops\.torch_functions has no row_scale: `make functions`"
    ):
        function()


@pytest.mark.slow
def test_it_keeps_the_contract(tmp_path: Path) -> None:
    folder = with_row_scale(tmp_path, "retrograd", "tests", "pyproject.toml", "README.md", "docs")
    collected = run(folder, "-m", "pytest", "--collect-only", "-q", *KEPT)
    assert "::test_a_good_call_is_right[row_scale]" in collected
    run(folder, "tests/write_functions.py")
    run(folder, "-m", "pytest", "-q", "-k", "row_scale", *KEPT)
