"""Generation with the bits of training: a window of the steps since the last border, on any framework.

A border is a multiple of `BORDER` steps. A row does not depend on later steps, and a sequence continued at a border has
the same bits as in one call. So a call on the window computes the next row. The values after the newest step are finite
and do not affect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrograd.core.op import Function, Op
from retrograd.core.packed import steps as steps_of
from retrograd.core.xp import Namespace

from . import portable
from .op import BORDER, OP
from .steps import ROWS, AtBorder, Prefill, SsdWindow, Step, Update

Arrays = Mapping[str, Any]
Options = Mapping[str, Any]
Ssd = Callable[..., Any]
Found = tuple[Any, Any]  # the rows, and the state at the last border
ABSENT, DEFAULTS = OP.complete({})  # known here, since `torch.compile` cannot trace a declaration


def update(xp: Namespace, ssd: Ssd, arrays: Arrays, options: Options) -> tuple[Any, Any]:
    """One step of the recurrence: (y, the new state)."""
    return portable.update(xp, **arrays, **options)


def prefill(
    xp: Namespace, ssd: Ssd, arrays: Arrays, options: Options, at_border: Ssd | None = None
) -> tuple[Any, SsdWindow]:
    """The rows of a sequence, and the window after it; `at_border`, if it takes the call, computes rows and state."""
    found = None if at_border is None else _results(at_border, arrays, **options, return_final_state=True)
    by_step = {name: arrays[name] for name in (*ROWS, "C", "z") if arrays.get(name) is not None}
    shared = {name: array for name, array in arrays.items() if name not in by_step}
    prefill = _prefill if arrays.get("cu_seqlens") is None else _prefill_packed
    return prefill(xp, ssd, by_step, shared, options, found)


def _prefill(
    xp: Namespace, ssd: Ssd, by_step: Arrays, shared: Arrays, options: Options, found: Found | None
) -> tuple[Any, SsdWindow]:
    """Of sequences of equal lengths."""
    batch, time, heads, P = by_step["x"].shape
    groups, N = by_step["B"].shape[2:]
    steps = time % BORDER
    y, state = found or _cut(xp, ssd, by_step, shared, options, time - steps)
    shapes = {"x": (heads, P), "dt": (heads,), "B": (groups, N)}

    def window(name: str) -> Any:
        """The steps since the border, then whatever is finite: the steps before it, where there are enough."""
        rows = by_step[name]
        if steps and time >= BORDER:
            return xp.concat([rows[:, time - steps :], rows[:, time - BORDER : time - steps]], 1)
        zeros = xp.zeros(rows, (batch, BORDER - steps, *shapes[name]), _dtype(rows))
        return xp.concat([rows, zeros], 1) if steps else zeros

    windows = {name: window(name) for name in ROWS}
    none = xp.zeros(state, (batch,), "int32")
    return y, SsdWindow(state, **windows, steps=none + steps if steps else none)


def _cut(xp: Namespace, ssd: Ssd, by_step: Arrays, shared: Arrays, options: Options, border: int) -> Found:
    """Of sequences cut at their last border."""
    time = by_step["x"].shape[1]
    if border == time:
        return _results(ssd, {**shared, **by_step}, **options, return_final_state=True)
    before = {name: array[:, :border] for name, array in by_step.items()}
    y, state = _results(ssd, {**shared, **before}, **options, return_final_state=True)
    since = {name: array[:, border:] for name, array in by_step.items()}
    rest, _ = _results(ssd, {**shared, **since, "initial_state": state}, **options)
    return xp.concat([y, rest], 1) if border else rest, state


def _prefill_packed(
    xp: Namespace, ssd: Ssd, by_step: Arrays, shared: Arrays, options: Options, found: Found | None
) -> tuple[Any, SsdWindow]:
    """Of packed sequences."""
    time, bounds = by_step["x"].shape[1], shared["cu_seqlens"]
    begin, end, sequences = bounds[:-1], bounds[1:], bounds.shape[0] - 1
    border = begin + (end - begin) // BORDER * BORDER
    since = xp.arange(bounds, BORDER)[None]
    taken = since < (end - border)[:, None]
    source = xp.where(taken, border[:, None] + since, 0)

    def window(array: Any) -> Any:
        if time == 0:
            return xp.zeros(array, (sequences, BORDER, *array.shape[2:]), _dtype(array))
        return xp.where(xp.reshape(taken, (sequences, BORDER, *(1 for _ in array.shape[2:]))), array[0][source], 0)

    windows = {name: window(by_step[name]) for name in ROWS}
    if found is None:
        all_windows = windows | {name: window(array) for name, array in by_step.items() if name not in windows}
        found = _cut_packed(xp, ssd, by_step, shared, options, border, all_windows)
    y, state = found
    return y, SsdWindow(state, **windows, steps=end - border)


def _cut_packed(
    xp: Namespace, ssd: Ssd, by_step: Arrays, shared: Arrays, options: Options, border: Any, windows: Arrays
) -> Found:
    """Of packed sequences: those up to the borders give the states there, a batch of windows the steps since then."""
    time, (heads, P), N = by_step["x"].shape[1], by_step["x"].shape[2:], by_step["B"].shape[3]
    bounds = shared["cu_seqlens"]
    begin, sequences = bounds[:-1], bounds.shape[0] - 1
    # Two sequences of each: up to its border, and the steps since then, which come out wrong, without their state.
    halves = xp.concat([xp.reshape(xp.stack([begin, border], 1), (-1,)), bounds[-1:]], 0)
    initial = shared["initial_state"]
    if initial is not None:
        initial = xp.reshape(xp.stack([initial, initial], 1), (2 * sequences, heads, P, N))
    before = {**shared, **by_step, "initial_state": initial, "cu_seqlens": halves}
    y, states = _results(ssd, before, **options, return_final_state=True)
    state = states[::2]
    rest, _ = _results(ssd, {**shared, **windows, "initial_state": state, "cu_seqlens": None}, **options)
    of = steps_of(xp, bounds, time)
    late = of.offset - (border - begin)[of.owner]
    from_rest = rest[of.owner, xp.clip(late, 0, BORDER - 1)]
    return xp.where(xp.reshape(of.inside & (late >= 0), (1, time, 1, 1)), from_rest[None], y), state


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

    def repeated(array: Any) -> Any:
        """For all steps, as only the newest row of results is read."""
        return None if array is None else xp.broadcast_to(array[:, None], (batch, BORDER, *array.shape[1:]))

    given = {**arrays, **filled, "C": repeated(arrays["C"]), "z": repeated(arrays["z"]), "initial_state": window.state}
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


AT_BORDER = Op(AtBorder, __package__, OP.only("hopper").implementations)
SSD_UPDATE = Function(Update, update)
SSD_PREFILL = Function(Prefill, prefill, AT_BORDER)
SSD_STEP = Function(Step, step)
