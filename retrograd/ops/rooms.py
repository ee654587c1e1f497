"""The rooms of the ops, by name."""

from __future__ import annotations

from importlib import import_module

from retrograd.core.room import Room

from .names import NAMES


def room(name: str) -> Room:
    """The room of an op."""
    if name not in NAMES:
        raise ValueError(f"op is {name!r}, expected one of {', '.join(NAMES)}")
    loaded: Room = import_module(f"retrograd.ops.{name}.room").ROOM
    return loaded


def rooms() -> list[Room]:
    """Every room."""
    return [room(name) for name in NAMES]
