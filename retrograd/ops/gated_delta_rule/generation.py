"""The functions for generation: a step of the recurrence, and those with the bits of training (`core/window.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrograd.core.op import Function
from retrograd.core.window import Windows
from retrograd.core.xp import Namespace

from . import portable
from .op import BORDER, OP
from .steps import GatedDeltaRuleWindow, Prefill, Step, Update


def update(
    xp: Namespace, scan: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """One step of the recurrence: (o, the new state)."""
    return portable.update(xp, **arrays, **options)


WINDOWS = Windows.of(OP, GatedDeltaRuleWindow, read=("q",), border=BORDER)
GATED_DELTA_RULE_UPDATE = Function(Update, update)
GATED_DELTA_RULE_PREFILL = Function(Prefill, WINDOWS.prefill)
GATED_DELTA_RULE_STEP = Function(Step, WINDOWS.step)
