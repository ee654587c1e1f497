"""The list of rooms, by name; a new op is added here."""

from __future__ import annotations

from importlib import import_module

from retrograd.core.room import Room

NAMES = ("rms_norm", "linear_scan", "causal_conv1d", "selective_scan", "ssd")


def room(name: str) -> Room:
    """The room of an op."""
    if name not in NAMES:
        raise ValueError(f"op is {name!r}, expected one of {', '.join(NAMES)}")
    loaded: Room = import_module(f"retrograd.ops.{name}.room").ROOM
    return loaded


def rooms() -> list[Room]:
    """Every room."""
    return [room(name) for name in NAMES]
