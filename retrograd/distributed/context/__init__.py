"""Sequences divided over processes: context parallel."""

from __future__ import annotations

from .layout import Layout, Piece
from .parallel import ContextParallel

__all__ = ["ContextParallel", "Layout", "Piece"]
