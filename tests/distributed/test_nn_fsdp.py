"""Models of every kind of layer with parameters sharded over two processes, by torch's `fully_shard`."""

from __future__ import annotations

from pathlib import Path

from processes import run


def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    run("nn_fsdp.check_gradients", 2, tmp_path)
