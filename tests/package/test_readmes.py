"""The blocks of Python in the READMEs: each runs as it stands, and prints what its comments say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import retrograd
from retrograd.ops.names import NAMES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
READMES = sorted([README, *(ROOT / "benchmarks").glob("README.md"), *(ROOT / "retrograd").rglob("README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)  # what a line prints stands behind it
NEAR_THE_TOP = 16  # lines

# Every block runs in a process of its own, forked from one that has imported what takes long to import.
RUN = """
import json, os, sys, traceback
import torch, retrograd, transformers.modeling_utils
for name, source in json.load(sys.stdin):
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        except BaseException:
            print(traceback.format_exc())
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as output:
        print(json.dumps([name, output.read()]))
    os.wait()
"""


def blocks() -> dict[str, str]:
    """The source of every block, by the file and its place there."""
    return {
        f"{path.relative_to(ROOT)}, block {place}": source
        for path in READMES
        for place, source in enumerate(BLOCK.findall(path.read_text()), 1)
    }


def test_every_block_runs_as_it_stands() -> None:
    pytest.importorskip("jax")
    pytest.importorskip("transformers")
    given = blocks()
    command = [sys.executable, "-c", RUN]
    ran = subprocess.run(command, input=json.dumps(list(given.items())), capture_output=True, text=True, check=True)
    printed = dict(json.loads(line) for line in ran.stdout.splitlines())
    assert printed.keys() == given.keys()
    for name, source in given.items():
        assert "Traceback" not in printed[name], f"{name}\n{printed[name]}"
        if expected := PRINTED.findall(source):
            assert printed[name].splitlines() == expected, name


def test_the_root_readme_names_every_public_function() -> None:
    retrograd_jax = pytest.importorskip("retrograd.jax")
    functions = {name for name in (*retrograd.__all__, *retrograd_jax.__all__) if name.islower() and name[0] != "_"}
    assert not {name for name in functions if f"`{name}`" not in README.read_text()}


@pytest.mark.parametrize("op", NAMES)
def test_the_readme_of_an_op_begins_with_a_call(op: str) -> None:
    text = (ROOT / "retrograd" / "ops" / op / "README.md").read_text()
    block = BLOCK.search(text)
    assert block is not None
    assert text[: block.start()].count("\n") < NEAR_THE_TOP
    assert f"retrograd.{op}(" in block[1]
    assert ".backward()" in block[1]
    assert len(block[1].splitlines()) <= 14
