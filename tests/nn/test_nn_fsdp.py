"""Models of every kind of layer with parameters sharded over two processes, by torch's `fully_shard`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "fsdp_two_processes.py"


def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    commands = [[sys.executable, str(SCRIPT), str(rank), str(tmp_path / "store")] for rank in range(2)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        for process in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
