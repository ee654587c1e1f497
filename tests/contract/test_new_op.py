"""A new op is its folder, and its name in `ops/names.py`, as CONTRIBUTING.md describes it: two of them, in a copy.

`row_scale` has one result, `row_butterfly` has two.
"""

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
NEW = ("row_scale", "row_butterfly")
USE = """
import doctest, sys
import retrograd, retrograd.jax
from retrograd.ops.infos import info

name = sys.argv[1]
for function in (getattr(retrograd, name), getattr(retrograd.jax, name)):
    (example,) = doctest.DocTestFinder().find(function, globs={})
    found = doctest.DocTestRunner().run(example)
    assert found.attempted and not found.failed
assert info(name).torch is getattr(retrograd, name)
"""


def with_new_ops(folder: Path, *copied: str) -> Path:
    """A copy of the repository's folders and files, with the ops."""
    for name in copied:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, folder / name)
    for name in NEW:
        shutil.copytree(ROOT / "tests" / name, folder / "retrograd/ops" / name)
        shutil.rmtree(folder / "tests" / name, ignore_errors=True)
    names = folder / "retrograd/ops/names.py"
    names.write_text(re.sub(r"\)\n$", "".join(f', "{name}"' for name in NEW) + ")\n", names.read_text()))
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ran = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
    return ran.stdout


@pytest.mark.slow
def test_both_frameworks_have_their_functions(tmp_path: Path) -> None:
    folder = with_new_ops(tmp_path, "retrograd", "tests/write_functions.py", "pyproject.toml")
    run(folder, "tests/write_functions.py")
    for name in NEW:
        run(folder, "-c", USE, name)


def test_a_function_that_is_not_written_yet_says_who_writes_it() -> None:
    """And says it when it is called, so that the tests of other ops run."""
    function = public_function("retrograd.ops.torch_functions", "row_scale")
    with pytest.raises(
        NotImplementedError, match=r"^retrograd\.ops\.torch_functions has no row_scale: `make functions`"
    ):
        function()


@pytest.mark.slow
def test_they_keep_the_contract(tmp_path: Path) -> None:
    folder = with_new_ops(tmp_path, "retrograd", "tests", "pyproject.toml", "README.md", "docs")
    collected = run(folder, "-m", "pytest", "--collect-only", "-q", *KEPT)
    for name in NEW:
        assert f"::test_a_good_call_is_right[{name}]" in collected
    run(folder, "tests/write_functions.py")
    run(folder, "-m", "pytest", "-q", "-k", " or ".join(NEW), *KEPT)
