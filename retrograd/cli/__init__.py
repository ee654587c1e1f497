"""The command line: `retrograd info`, `check`, `bench`, `train`, `generate`."""

from __future__ import annotations

import io
import sys


def main() -> int:
    """Run the command line; the exit status is 0, 1 after a failure, or 2 for bad input."""
    try:
        import rich  # noqa: F401
        import torch  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(f'retrograd: {error.name} is not installed; pip install "retrograd[cli]"', file=sys.stderr)
        return 2
    from .app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model generates any character, and a terminal may not support it
    app(prog_name="retrograd")
    return 0
