"""Rows of benchmarks that are measured in a process each: the process prints its row, as JSON, in its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def measured(command: Sequence[str], named: str, env: Mapping[str, str] | None = None) -> Row | None:
    """The row of a Python command; None, and its errors printed, if it failed."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=os.environ | dict(env or {}), check=False
    )
    return row_of(done.returncode, done.stdout, done.stderr, named)


def row_of(code: int, out: str, errors: str, named: str) -> Row | None:
    """The row of a process that has ended; None, and its errors printed, if it failed."""
    if code:
        print(f"{named}: failed\n{errors[-1500:]}", flush=True)
        return None
    row: Row = json.loads(out.splitlines()[-1])
    return row


def add(row: Row, path: Path, device: str) -> None:
    """Add a row to a file, with commit and date."""
    from retrograd.bench.environment import stamp

    now = stamp(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row | {"commit": now.commit, "date": now.date}) + "\n")
