"""Generation with the bits of training: a state and the steps since the last border, on any framework.

A border is a multiple of so many steps that a sequence continued there has the same bits as in one call. A row does not
depend on later steps. So a call on the steps since the border computes the next row; the values after the newest step
are finite and do not affect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .op import Op
from .packed import steps as steps_of
from .xp import Namespace

Arrays = Mapping[str, Any]
Options = Mapping[str, Any]
Scan = Callable[..., Any]  # what `bind` makes of an op that looks along time
Found = tuple[Any, Any]  # the rows, and the state at the last border


class Windows(NamedTuple):
    """The windows of an op.

    Attributes:
        kind: the class of a window: a named tuple of `state`, arguments with a row per step that later steps need, and
            `steps`, how many there are since the border.
        kept: the names of these arguments.
        read: those with a row per step that later steps do not need.
        border: steps between two borders, which a window has room for.
        absent, defaults: the op's arguments, and its options by default, since a compiler cannot trace a declaration.
    """

    kind: Any
    kept: tuple[str, ...]
    read: tuple[str, ...]
    border: int
    absent: Arrays
    defaults: Options

    @classmethod
    def of(cls, op: Op, kind: Any, read: tuple[str, ...], border: int) -> Windows:
        """The windows of an op that are named tuples of this class."""
        return cls(kind, kind._fields[1:-1], read, border, *op.complete({}))

    def prefill(
        self, xp: Namespace, scan: Scan, arrays: Arrays, options: Options, at_border: Scan | None = None
    ) -> tuple[Any, Any]:
        """The rows of a sequence, and the window after it; `at_border`, if it takes the call, gives rows and state."""
        found = None if at_border is None else self._results(at_border, arrays, **options, return_final_state=True)
        by_step = {name: arrays[name] for name in (*self.kept, *self.read) if arrays.get(name) is not None}
        shared = {name: array for name, array in arrays.items() if name not in by_step}
        prefill = self._prefill if arrays.get("cu_seqlens") is None else self._prefill_packed
        return prefill(xp, scan, by_step, shared, options, found)

    def step(self, xp: Namespace, scan: Scan, arrays: Arrays, options: Options) -> tuple[Any, Any]:
        """The next row, and the window after it."""
        window = self.kind(*[arrays[f"window.{name}"] for name in self.kind._fields])
        batch, border = window.steps.shape[0], self.border
        newest = xp.arange(window.steps, border)[None] == window.steps[:, None]

        def with_row(name: str) -> Any:
            old, row = getattr(window, name), arrays[name]
            position = xp.reshape(newest, (batch, border, *(1 for _ in row.shape[1:])))
            return xp.where(position, row[:, None], old)

        def repeated(array: Any) -> Any:
            """For all steps, as only the newest row of results is read."""
            return None if array is None else xp.broadcast_to(array[:, None], (batch, border, *array.shape[1:]))

        filled = {name: with_row(name) for name in self.kept}
        spread = {name: repeated(arrays[name]) for name in self.read}
        given = {**arrays, **filled, **spread, "initial_state": window.state}
        y, state = self._results(scan, given, **options, return_final_state=True)
        row = y[xp.arange(window.steps, batch), window.steps]
        full = window.steps == border - 1
        state = xp.where(xp.reshape(full, (batch, *(1 for _ in state.shape[1:]))), state, window.state)
        return row, self.kind(state, **filled, steps=xp.where(full, 0, window.steps + 1))

    def _prefill(
        self, xp: Namespace, scan: Scan, by_step: Arrays, shared: Arrays, options: Options, found: Found | None
    ) -> tuple[Any, Any]:
        """Of sequences of equal lengths."""
        batch, time = by_step[self.kept[0]].shape[:2]
        steps = time % self.border
        y, state = found or self._cut(xp, scan, by_step, shared, options, time - steps)

        def window(name: str) -> Any:
            """The steps since the border, then whatever is finite: the steps before it, where there are enough."""
            rows = by_step[name]
            if steps and time >= self.border:
                return xp.concat([rows[:, time - steps :], rows[:, time - self.border : time - steps]], 1)
            zeros = xp.zeros(rows, (batch, self.border - steps, *rows.shape[2:]), _dtype(rows))
            return xp.concat([rows, zeros], 1) if steps else zeros

        windows = {name: window(name) for name in self.kept}
        none = xp.zeros(state, (batch,), "int32")
        return y, self.kind(state, **windows, steps=none + steps if steps else none)

    def _cut(self, xp: Namespace, scan: Scan, by_step: Arrays, shared: Arrays, options: Options, border: int) -> Found:
        """Of sequences cut at their last border."""
        time = by_step[self.kept[0]].shape[1]
        if border == time:
            return self._results(scan, {**shared, **by_step}, **options, return_final_state=True)
        before = {name: array[:, :border] for name, array in by_step.items()}
        y, state = self._results(scan, {**shared, **before}, **options, return_final_state=True)
        since = {name: array[:, border:] for name, array in by_step.items()}
        rest, _ = self._results(scan, {**shared, **since, "initial_state": state}, **options)
        return xp.concat([y, rest], 1) if border else rest, state

    def _prefill_packed(
        self, xp: Namespace, scan: Scan, by_step: Arrays, shared: Arrays, options: Options, found: Found | None
    ) -> tuple[Any, Any]:
        """Of packed sequences."""
        time, bounds = by_step[self.kept[0]].shape[1], shared["cu_seqlens"]
        begin, end, sequences = bounds[:-1], bounds[1:], bounds.shape[0] - 1
        border = begin + (end - begin) // self.border * self.border
        since = xp.arange(bounds, self.border)[None]
        taken = since < (end - border)[:, None]
        source = xp.where(taken, border[:, None] + since, 0)

        def window(array: Any) -> Any:
            shape = (sequences, self.border)
            if time == 0:
                return xp.zeros(array, (*shape, *array.shape[2:]), _dtype(array))
            return xp.where(xp.reshape(taken, (*shape, *(1 for _ in array.shape[2:]))), array[0][source], 0)

        windows = {name: window(by_step[name]) for name in self.kept}
        if found is None:
            all_windows = windows | {name: window(array) for name, array in by_step.items() if name not in windows}
            found = self._cut_packed(xp, scan, by_step, shared, options, border, all_windows)
        y, state = found
        return y, self.kind(state, **windows, steps=end - border)

    def _cut_packed(
        self,
        xp: Namespace,
        scan: Scan,
        by_step: Arrays,
        shared: Arrays,
        options: Options,
        border: Any,
        windows: Arrays,
    ) -> Found:
        """Of packed sequences: those up to the borders give the states there, a batch of windows the steps since."""
        time = by_step[self.kept[0]].shape[1]
        bounds = shared["cu_seqlens"]
        begin, sequences = bounds[:-1], bounds.shape[0] - 1
        # Two sequences of each: up to its border, and the steps since then, which come out wrong, without their state.
        halves = xp.concat([xp.reshape(xp.stack([begin, border], 1), (-1,)), bounds[-1:]], 0)
        initial = shared["initial_state"]
        if initial is not None:
            initial = xp.reshape(xp.stack([initial, initial], 1), (2 * sequences, *initial.shape[1:]))
        before = {**shared, **by_step, "initial_state": initial, "cu_seqlens": halves}
        y, states = self._results(scan, before, **options, return_final_state=True)
        state = states[::2]
        since = {**shared, **windows, "initial_state": state, "cu_seqlens": None}
        rest, _ = self._results(scan, since, **options)
        of = steps_of(xp, bounds, time)
        late = of.offset - (border - begin)[of.owner]
        from_rest = rest[of.owner, xp.clip(late, 0, self.border - 1)]
        of_rest = xp.reshape(of.inside & (late >= 0), (1, time, *(1 for _ in y.shape[2:])))
        return xp.where(of_rest, from_rest[None], y), state

    def _results(self, scan: Scan, arrays: Arrays, **options: Any) -> Any:
        """All results of the op, None for those not asked for, from what is given of its arguments."""
        return scan({name: arrays.get(name) for name in self.absent}, {**self.defaults, **options})


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")
