"""Generation with the bits of training: a window of the steps since the last border, on any framework.

A border is a multiple of `BORDER` steps. A row does not depend on later steps, and a sequence continued at a border has
the same bits as in one call. So a call on the window computes the next row. The values after the newest step are finite
and do not affect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrograd.core.errors import bad_type
from retrograd.core.xp import Namespace

from .op import BORDER
from .steps import ROWS, Step

Ssd = Callable[..., Any]


class SsdWindow(NamedTuple):
    """The state and the steps from which `ssd_step` continues.

    Attributes:
        state: (batch, H, P, N), the state at the last border: a multiple of 128 steps.
        x: (batch, 128, H, P), of the steps since the border, in the first `steps` of 128 positions.
        dt: (batch, 128, H), likewise.
        B: (batch, 128, G, N), likewise.
        C: as B.
        steps: (batch,) int32, the number of steps since the border.
    """

    state: Any
    x: Any
    dt: Any
    B: Any
    C: Any
    steps: Any


def arrays_of_window(window: Any) -> dict[str, Any]:
    """The arrays of a window, by their names in errors; raises TypeError for anything but a window."""
    if not isinstance(window, SsdWindow):
        raise bad_type(Step.op, "window", window, "an SsdWindow")
    return {f"window.{name}": getattr(window, name) for name in SsdWindow._fields}


def prefill(xp: Namespace, ssd: Ssd, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, SsdWindow]:
    """The rows of a sequence, and the window after it."""
    batch, time, heads, P = arrays["x"].shape
    groups, N = arrays["B"].shape[2:]
    border = time // BORDER * BORDER
    by_step = {name: arrays[name] for name in (*ROWS, "z") if arrays.get(name) is not None}
    shared = {name: array for name, array in arrays.items() if name not in by_step}
    before, since = ({n: a[:, part] for n, a in by_step.items()} for part in (slice(border), slice(border, None)))
    y, state = ssd(**shared, **before, **options, return_final_state=True)
    rest, _ = ssd(**{**shared, "initial_state": state}, **since, **options)
    shapes = {"x": (heads, P), "dt": (heads,), "B": (groups, N), "C": (groups, N)}

    def filled(name: str) -> Any:
        array = since[name]
        zeros = xp.zeros(array, (batch, BORDER - (time - border), *shapes[name]), _dtype(array))
        return xp.concat([array, zeros], 1)

    steps = xp.zeros(state, (batch,), "int32") + (time - border)
    return xp.concat([y, rest], 1), SsdWindow(state, **{name: filled(name) for name in ROWS}, steps=steps)


def step(
    xp: Namespace, ssd: Ssd, window: SsdWindow, rows: Mapping[str, Any], shared: Mapping[str, Any], z: Any
) -> tuple[Any, SsdWindow]:
    """The next row, and the window after it.

    Args:
        xp: the framework's array functions.
        ssd: the framework's `ssd` with all of its results, None for those not asked for.
        window: the window before the step.
        rows: x, dt, B and C of the step.
        shared: the other arguments, and the options.
        z: the gate of the step, or None.
    """
    batch = window.x.shape[0]
    newest = xp.arange(window.steps, BORDER)[None] == window.steps[:, None]

    def with_row(name: str) -> Any:
        old, row = getattr(window, name), rows[name]
        position = xp.reshape(newest, (batch, BORDER, *(1 for _ in row.shape[1:])))
        return xp.where(position, row[:, None], old)

    filled = {name: with_row(name) for name in ROWS}
    gate = {} if z is None else {"z": xp.broadcast_to(z[:, None], (batch, BORDER, *z.shape[1:]))}
    y, state = ssd(**filled, **gate, **shared, initial_state=window.state, return_final_state=True)
    row = y[xp.arange(window.steps, batch), window.steps]
    full = window.steps == BORDER - 1
    state = xp.where(xp.reshape(full, (batch, 1, 1, 1)), state, window.state)
    return row, SsdWindow(state, **filled, steps=xp.where(full, 0, window.steps + 1))


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")
