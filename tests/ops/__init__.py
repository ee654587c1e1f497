"""Tests of one op each, in a folder of its name, with what the suites of all ops need of it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def file_of(op: str, name: str) -> ModuleType | None:
    """`tests/ops/<op>/<name>.py`; None where there is none."""
    module = f"{__package__}.{op}.{name}"
    return import_module(module) if find_spec(f"{__package__}.{op}") and find_spec(module) else None
