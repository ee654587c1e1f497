"""Recurrences: the state after a device's steps is sent to the next one, and its gradient back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from retrograd.core.forgetting import STEP
from retrograd.core.jax.arguments import arrays_of, params_of
from retrograd.core.jax.context import Results
from retrograd.core.jax.passes import Backward, Forward
from retrograd.core.jax.sharding import vary_alike
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.op import Op, gradient_names

from .borders import Borders, Crossing, vary_along

FORGOTTEN = -150 * log(2)  # the log of a decay that leaves nothing beside a float32
SHARE = 4  # one of so many of a device's steps is computed twice, to find what crosses a border
INEXACT = ("linear_scan",)  # ops whose parts have not the bits of the whole
ROUNDING = 32  # times epsilon, beside the largest: how far apart equal numbers may be where bits are not promised

Arrays = dict[str, Any]


def recurrence(
    borders: Borders, op: Op, run: Callable[..., Results], arrays: Arrays, options: dict[str, Any]
) -> Results:
    """A recurrence over the steps of all devices.

    Where the states at all borders come of few steps before them, all devices compute at once: each first computes the
    state that it sends, from these few steps. Then it compares it with the one that it has from all its steps. If one
    device finds another, or if a state reaches too far, one device after another computes its steps, from the state
    that the one before it has sent.
    """
    borders = borders.packed(op.name, arrays["cu_seqlens"])
    given = arrays_of(op.name, arrays)
    given["cu_seqlens"] = borders.boundaries(borders.start, borders.time)
    always = {**options, "return_final_state": True}
    spec = op.spec(params_of(given), always)
    if given["initial_state"] is None:
        state = spec["final_state"]
        given["initial_state"] = jnp.zeros(state.shape, state.dtype)
        spec = op.spec(params_of(given), always)
    given["initial_state"] = given["initial_state"].astype(spec["final_state"].dtype)
    given["cu_seqlens"] = borders.bounds
    names = [name for name, array in given.items() if array is not None]
    varied = vary_alike(vary_along(borders.axis, [given[name] for name in names]))
    axes = spec.axes_of("T")
    scan = Scan(op, tuple(always.items()), borders.axis, borders.world, borders.time, tuple(axes.items()))
    scanned = jax.custom_vjp(partial(_scanned, scan))
    scanned.defvjp(partial(_forward, scan), partial(_backward, scan))
    y, final = scanned(dict(zip(names, varied, strict=True)))
    if not options["return_final_state"]:
        return y, None
    return y, borders.finals(final, scan.reverse)


@dataclass(frozen=True)
class Scan:
    """What a call has beside its arrays.

    Attributes:
        op: the op.
        options: its options, by name.
        axis: the mesh's axis.
        world: the number of devices.
        time: the steps of each.
        axes: the axis of time of the arrays that have one, by name.
    """

    op: Op
    options: tuple[tuple[str, Any], ...]
    axis: str
    world: int
    time: int
    axes: tuple[tuple[str, int], ...]

    @property
    def reverse(self) -> bool:
        """Whether it begins with the last steps."""
        return bool(dict(self.options).get("reverse"))

    @property
    def near(self) -> int:
        """The steps beside a border that are computed twice; 0 for too few steps."""
        return self.time // SHARE // STEP * STEP

    def forward(self, arrays: Arrays) -> Arrays:
        """Results and saved arrays."""
        return Forward.of(self.op, self._spec(arrays)).named(self._all(arrays))

    def kept(self, arrays: Arrays, outputs: Arrays) -> Arrays:
        """The outputs that the backward pass reads, named for policies as those of a call on one device."""
        read = Backward.of(self.op, self._spec(arrays)).call.inputs
        return {name: checkpoint_name(x, f"{self.op.name}_{name}") for name, x in outputs.items() if name in read}

    def backward(self, arrays: Arrays, outputs: Arrays, dy: jax.Array, dfinal: jax.Array) -> Arrays:
        """The gradients of the arrays, by their names."""
        spec = self._spec(arrays)
        incoming = zip(self.op.results, map(_conj, (dy, dfinal)), strict=True)
        found = Backward.of(self.op, spec).named(
            self._all(arrays) | outputs | {f"d{name}": gradient for name, gradient in incoming}
        )
        names = dict(zip(self.op.arguments, gradient_names(self.op, spec), strict=True))
        return {name: _conj(found[names[name]]) for name in arrays if names[name] in found}

    def _spec(self, arrays: Arrays) -> Any:
        return self.op.spec(params_of(self._all(arrays)), dict(self.options))

    def _all(self, arrays: Arrays) -> Arrays:
        return {name: arrays.get(name) for name in self.op.arguments}


def _scanned(scan: Scan, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    return _forward(scan, arrays)[0]


def _forward(scan: Scan, arrays: Arrays) -> tuple[tuple[jax.Array, jax.Array], tuple[Arrays, Arrays]]:
    steps = Steps(scan, arrays)
    outputs, entered = steps.outputs()
    y, final = (outputs[name] for name in scan.op.results)
    return (y, final), (arrays | {"initial_state": entered}, scan.kept(arrays, outputs))


def _backward(scan: Scan, saved: tuple[Arrays, Arrays], gradients: tuple[jax.Array, jax.Array]) -> tuple[Arrays]:
    arrays, outputs = saved
    steps = Steps(scan, arrays)
    found = steps.gradients(outputs, *gradients)
    entry = steps.entry
    initial = found["initial_state"]  # where it entered, another device's
    found["initial_state"] = entry.within(initial, jnp.zeros_like(entry.of(initial)))
    return ({name: found.get(name) for name in arrays},)


class Steps:
    """A device's steps: the op's outputs for them, and their gradients, for what enters and leaves.

    Attributes:
        arrays: those of the call, with the boundaries of this device's steps.
        entry, exit: the sequences that cross the borders, in the direction of the scan.
    """

    def __init__(self, scan: Scan, arrays: Arrays) -> None:
        rank = jax.lax.axis_index(scan.axis)
        self.scan = scan
        self.borders = borders = Borders(scan.axis, scan.world, rank, scan.time, arrays.get("cu_seqlens"))
        self.arrays = dict(arrays)
        if borders.bounds is not None:
            self.arrays["cu_seqlens"] = borders.boundaries(borders.start, scan.time)
        first, last = borders.crossing(borders.start), borders.crossing(borders.stop)
        self.entry, self.exit = (last, first) if scan.reverse else (first, last)

    def outputs(self) -> tuple[Arrays, jax.Array]:
        """Results and saved arrays, and the states before the steps."""
        scan, initial = self.scan, self.arrays["initial_state"]

        def of(entering: jax.Array) -> tuple[Arrays, jax.Array]:
            entered = self.entry.within(initial, entering)
            return scan.forward(self.arrays | {"initial_state": entered}), entered

        def at_once() -> tuple[Any, jax.Array]:
            near = self._beside(self.exit, not scan.reverse)
            began = self._whole(self.exit, not scan.reverse)
            near["initial_state"] = jnp.where(began, self.exit.of(initial), 0)
            early = scan.forward(near)["final_state"]
            found = of(self._passed(early))
            return found, self._same(early, self.exit, found[0]["final_state"])

        def leaving(found: tuple[Arrays, jax.Array]) -> jax.Array:
            return self.exit.of(found[0]["final_state"])

        found: tuple[Arrays, jax.Array] = self._either(at_once, of, leaving, self.entry.of(initial), back=False)
        return found

    def gradients(self, outputs: Arrays, dy: jax.Array, dfinal: jax.Array) -> Arrays:
        """The gradients of the arrays; that of the initial states is of all states before the steps."""
        scan = self.scan

        def of(left: jax.Array) -> Arrays:
            return scan.backward(self.arrays, outputs, dy, self.exit.within(dfinal, left))

        def at_once() -> tuple[Any, jax.Array]:
            near = self._beside(self.entry, scan.reverse)
            near["initial_state"] = self.entry.of(self.arrays["initial_state"])
            ended = self._whole(self.entry, scan.reverse)
            of_final = jnp.where(ended, self.entry.of(dfinal), 0)
            early = scan.backward(near, scan.forward(near), self._part(dy, 1, scan.reverse), of_final)["initial_state"]
            found = of(self._passed(early, back=True))
            return found, self._same(early, self.entry, found["initial_state"])

        def leaving(found: Arrays) -> jax.Array:
            return self.entry.of(found["initial_state"])

        found: Arrays = self._either(at_once, of, leaving, self.exit.of(dfinal), back=True)
        return found

    def _either(
        self,
        at_once: Callable[[], tuple[Any, jax.Array]],
        of: Callable[[jax.Array], Any],
        leaving: Callable[[Any], jax.Array],
        like: jax.Array,
        back: bool,
    ) -> Any:
        """What all devices compute at once, if that is right, or else in turn; `of` what enters, which is as `like`."""
        shapes = jax.eval_shape(of, like)
        empty = self._varied(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
        if not self.scan.near:
            return self._in_turn(of, leaving, empty, back)
        forgotten = self._forgotten(self.exit, not self.scan.reverse) & self._forgotten(self.entry, self.scan.reverse)
        found, right = jax.lax.cond(
            self.borders.everywhere(forgotten), at_once, lambda: (empty, jnp.zeros((), jnp.bool))
        )
        return jax.lax.cond(right, lambda: found, lambda: self._in_turn(of, leaving, empty, back))

    def _in_turn(
        self, of: Callable[[jax.Array], Any], leaving: Callable[[Any], jax.Array], empty: Any, back: bool
    ) -> Any:
        """What `of` returns for what enters, on one device after another."""
        last = self.scan.world - 1
        down = back != self.scan.reverse

        def turn(number: jax.Array, carried: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            found, entering = carried
            place = last - number if down else number
            found = jax.lax.cond(self.borders.rank == place, lambda: of(entering), lambda: found)
            passed = self._passed(leaving(found), back)
            following = self.borders.rank == (place - 1 if down else place + 1)
            return found, jnp.where(following, passed, entering)

        found, _ = jax.lax.fori_loop(0, self.scan.world, turn, (empty, jnp.zeros_like(leaving(empty))))
        return found

    def _passed(self, state: jax.Array, back: bool = False) -> jax.Array:
        """The state that the device before this one has, in the direction of the scan or, with `back`, against it."""
        passed: jax.Array = self.borders.from_next(state, back=back == self.scan.reverse)
        return passed

    def _part(self, x: jax.Array, axis: int, at_end: bool) -> jax.Array:
        first = self.scan.time - self.scan.near if at_end else 0
        return jax.lax.slice_in_dim(x, first, first + self.scan.near, axis=axis)

    def _first(self, at_end: bool) -> jax.Array:
        """The first of the steps beside a border."""
        return self.borders.stop - self.scan.near if at_end else self.borders.start

    def _beside(self, crossing: Crossing, at_end: bool) -> Arrays:
        """The arrays of the steps beside a border, of the sequence that crosses it."""
        axes = dict(self.scan.axes)
        near = {name: self._part(x, axes[name], at_end) if name in axes else x for name, x in self.arrays.items()}
        if self.borders.bounds is not None:
            ends = jnp.stack([crossing.begin, crossing.end])
            near["cu_seqlens"] = jnp.clip(ends - self._first(at_end), 0, self.scan.near)
        return near

    def _whole(self, crossing: Crossing, at_end: bool) -> jax.Array:
        """Whether the steps beside a border are all of the sequence on this side of it."""
        first = self._first(at_end)
        return crossing.begin >= first if at_end else crossing.end <= first + self.scan.near

    def _forgotten(self, crossing: Crossing, at_end: bool) -> jax.Array:
        """Whether what crosses a border comes of the steps beside it alone."""
        near, formulas = self._beside(crossing, at_end), self.scan.op.formulas
        logs = formulas.log_decays(jax_namespace(), near, dict(self.scan.options)).sum(1)
        known: jax.Array = ~crossing.is_one | self._whole(crossing, at_end) | (logs <= FORGOTTEN).all()  # not of NaN
        return known

    def _same(self, early: jax.Array, crossing: Crossing, states: jax.Array) -> jax.Array:
        """Whether all devices have found, from all steps, the state that they had from some."""
        found = crossing.of(states)
        if self.scan.op.name in INEXACT:
            same = self._near(early, found)
        else:  # XLA rounds the portable path in as many ways as there are programs
            same = jax.lax.platform_dependent(early, found, cuda=_same_bits, default=self._near)
        return self.borders.everywhere(~crossing.is_one | same)

    def _near(self, early: jax.Array, found: jax.Array) -> jax.Array:
        rounding = ROUNDING * jnp.finfo(found.dtype).eps
        near: jax.Array = (jnp.abs(early - found) <= rounding * jnp.abs(found).max(initial=0)).all()
        return near

    def _varied(self, x: Any) -> Any:
        """Arrays that vary over the mesh as those of the call do."""
        leaves, tree = jax.tree.flatten(x)
        like = self.arrays["initial_state"]
        return jax.tree.unflatten(tree, vary_alike([*leaves, like])[:-1])


def _same_bits(a: jax.Array, b: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(a):
        return _same_bits(a.real, b.real) & _same_bits(a.imag, b.imag)
    bits = jnp.dtype(f"int{8 * a.dtype.itemsize}")
    same: jax.Array = (jax.lax.bitcast_convert_type(a, bits) == jax.lax.bitcast_convert_type(b, bits)).all()
    return same


def _conj(x: jax.Array) -> jax.Array:
    """PyTorch's gradient of a complex array, which the passes compute, is the conjugate of JAX's."""
    return jnp.conj(x) if jnp.iscomplexobj(x) else x
