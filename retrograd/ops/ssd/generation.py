"""Generation with the bits of training: a window of the steps since the last border, on any framework.

A border is a multiple of `BORDER` steps. A row does not depend on later steps, and a sequence continued at a border has
the same bits as in one call. So a call on the window computes the next row. The values after the newest step are finite
and do not affect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrograd.core.op import Function
from retrograd.core.xp import Namespace

from . import portable
from .op import BORDER, OP
from .steps import ROWS, Prefill, SsdWindow, Step, Update

Arrays = Mapping[str, Any]
Options = Mapping[str, Any]
Ssd = Callable[..., Any]
ABSENT, DEFAULTS = OP.complete({})  # known here, since `torch.compile` cannot trace a declaration


def update(xp: Namespace, ssd: Ssd, arrays: Arrays, options: Options) -> tuple[Any, Any]:
    """One step of the recurrence: (y, the new state)."""
    return portable.update(xp, **arrays, **options)


def prefill(xp: Namespace, ssd: Ssd, arrays: Arrays, options: Options) -> tuple[Any, SsdWindow]:
    """The rows of a sequence, and the window after it."""
    batch, time, heads, P = arrays["x"].shape
    groups, N = arrays["B"].shape[2:]
    border = time // BORDER * BORDER
    by_step = {name: arrays[name] for name in (*ROWS, "z") if arrays.get(name) is not None}
    shared = {name: array for name, array in arrays.items() if name not in by_step}
    before, since = ({n: a[:, part] for n, a in by_step.items()} for part in (slice(border), slice(border, None)))
    y, state = _results(ssd, shared | before, **options, return_final_state=True)
    rest, _ = _results(ssd, {**shared, **since, "initial_state": state}, **options)
    shapes = {"x": (heads, P), "dt": (heads,), "B": (groups, N), "C": (groups, N)}

    def filled(name: str) -> Any:
        array = since[name]
        zeros = xp.zeros(array, (batch, BORDER - (time - border), *shapes[name]), _dtype(array))
        return xp.concat([array, zeros], 1)

    steps = xp.zeros(state, (batch,), "int32") + (time - border)
    return xp.concat([y, rest], 1), SsdWindow(state, **{name: filled(name) for name in ROWS}, steps=steps)


def step(xp: Namespace, ssd: Ssd, arrays: Arrays, options: Options) -> tuple[Any, SsdWindow]:
    """The next row, and the window after it."""
    window = SsdWindow(*[arrays[f"window.{name}"] for name in SsdWindow._fields])
    batch = window.x.shape[0]
    newest = xp.arange(window.steps, BORDER)[None] == window.steps[:, None]

    def with_row(name: str) -> Any:
        old, row = getattr(window, name), arrays[name]
        position = xp.reshape(newest, (batch, BORDER, *(1 for _ in row.shape[1:])))
        return xp.where(position, row[:, None], old)

    filled = {name: with_row(name) for name in ROWS}
    z = arrays["z"]
    gate = None if z is None else xp.broadcast_to(z[:, None], (batch, BORDER, *z.shape[1:]))
    given = {**arrays, **filled, "z": gate, "initial_state": window.state}
    y, state = _results(ssd, given, **options, return_final_state=True)
    row = y[xp.arange(window.steps, batch), window.steps]
    full = window.steps == BORDER - 1
    state = xp.where(xp.reshape(full, (batch, 1, 1, 1)), state, window.state)
    return row, SsdWindow(state, **filled, steps=xp.where(full, 0, window.steps + 1))


def _results(ssd: Ssd, arrays: Arrays, **options: Any) -> Any:
    """All results of a framework's `ssd`, None for those not asked for, from what is given of its arguments."""
    return ssd({name: arrays.get(name) for name in ABSENT}, DEFAULTS | options)


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


SSD_UPDATE = Function(Update, update)
SSD_PREFILL = Function(Prefill, prefill)
SSD_STEP = Function(Step, step)
