"""Every op on DTensors, sharded along every axis that its declaration calls independent, in two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run

from retrograd.ops.infos import infos


@pytest.mark.slow
def test_results_and_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    first, second = run("dtensors.every_op", 2, tmp_path)
    assert first == second
    assert first.keys() == {op.name for op in infos()}
    assert min(first.values()) > 20  # ways to shard the cases of an op
