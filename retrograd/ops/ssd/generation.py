"""The functions for generation: a step of the recurrence, and those with the bits of training (`core/window.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrograd.core.op import Function, Op
from retrograd.core.window import Windows
from retrograd.core.xp import Namespace

from . import portable
from .op import BORDER, OP
from .steps import AtBorder, Prefill, SsdWindow, Step, Update


def update(
    xp: Namespace, ssd: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """One step of the recurrence: (y, the new state)."""
    return portable.update(xp, **arrays, **options)


WINDOWS = Windows.of(OP, SsdWindow, read=("C", "z"), border=BORDER)
AT_BORDER = Op(AtBorder, __package__, OP.only("hopper").implementations)
SSD_UPDATE = Function(Update, update)
SSD_PREFILL = Function(Prefill, WINDOWS.prefill, AT_BORDER)
SSD_STEP = Function(Step, WINDOWS.step)
