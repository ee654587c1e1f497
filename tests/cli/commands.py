"""Calls the command line within the process of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from retrograd.cli.app import app

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    """Assert that a command exits with status 2 and one line, and return the line."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("retrograd: ")
    return str(line)
