"""The blocks of Python in the READMEs: each runs as it stands, and prints what its comments say."""

from __future__ import annotations

import pytest
from blocks import BLOCK, ROOT, check_blocks

import retrograd
from retrograd.ops.names import NAMES

README = ROOT / "README.md"
READMES = sorted([README, *(ROOT / "benchmarks").glob("README.md"), *(ROOT / "retrograd").rglob("README.md")])
NEAR_THE_TOP = 16  # lines


@pytest.mark.docs
def test_every_block_runs_as_it_stands() -> None:
    pytest.importorskip("jax")
    pytest.importorskip("transformers")
    check_blocks(READMES)


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
