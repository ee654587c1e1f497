"""Rows of benchmarks that are measured in a process each: the process prints its row, as JSON, in its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Timer
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


def side_by_side(commands: Mapping[str, Sequence[str]], seconds: float = 86400.0) -> Iterator[tuple[str, Row | None]]:
    """Rows of Python commands that prepare at the same time, and then measure one by one.

    A command prints `ready`, waits for a line, and prints its rows; each is yielded with the command's name as soon as
    it is there, and None for a command that failed, with its errors on stderr.

    Args:
        commands: their arguments, by name.
        seconds: a time after which all that still run are ended.
    """
    with ExitStack() as after:
        running = []
        for name, command in commands.items():
            errors = after.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            after.callback(process.wait)
            after.callback(process.kill)
            running.append((name, process, errors))
        late = [Timer(seconds, process.kill) for _, process, _ in running]
        for timer in late:
            timer.daemon = True
            timer.start()
            after.callback(timer.cancel)
        for _, process, _ in running:
            assert process.stdout is not None
            for line in process.stdout:  # until it is ready, or ends
                if line == "ready\n":
                    break
        for name, process, errors in running:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.close()
            for line in process.stdout:
                if line.startswith("{"):
                    yield name, json.loads(line)
            if process.wait():
                errors.seek(0)
                print(f"{name}: failed ({process.returncode})\n{errors.read()[-1500:]}", file=sys.stderr, flush=True)
                yield name, None


def ready() -> None:
    """In such a command: say that it is ready, and wait for its turn."""
    print("ready", flush=True)
    sys.stdin.readline()


def add(row: Row, path: Path, device: str) -> None:
    """Add a row to a file, with commit and date."""
    from retrograd.bench.environment import stamp

    now = stamp(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row | {"commit": now.commit, "date": now.date}) + "\n")
