"""What tests, benchmarks and the command line know about the ops, by name."""

from __future__ import annotations

from importlib import import_module

from retrograd.opinfo.info import OpInfo

from .names import NAMES


def info(name: str) -> OpInfo:
    """The `OpInfo` of an op."""
    if name not in NAMES:
        raise ValueError(f"op is {name!r}, expected one of {', '.join(NAMES)}")
    loaded: OpInfo = import_module(f"retrograd.ops.{name}.info").INFO
    return loaded


def infos() -> list[OpInfo]:
    """The `OpInfo` of every op."""
    return [info(name) for name in NAMES]
