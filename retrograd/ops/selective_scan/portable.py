"""The selective scan without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

`xp` is a `retrograd.core.xp.Namespace`. Time is cut into chunks and these into blocks. All that needs no state
(decays, inputs, sums over states or channels) is computed for a whole block at once; only h = e * h + v runs step by
step. Arrays of a block have the axes (steps, batch, states, channels).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.chunks import Geometry, Rows, cut_time
from retrograd.core.spec import Param, known
from retrograd.core.xp import Namespace

from .op import Spec

Arrays = Mapping[str, Any]
BLOCK = 32  # steps of a block, at most; a chunk is a whole number of blocks


def forward(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The outputs y, final_state and states, by name."""
    x, delta, _ = _inputs(xp, spec, arrays)
    if 0 in spec.x.shape:
        return _without_steps(xp, spec, arrays)
    time = _cut_time(xp, spec, arrays)
    maths = _Maths(xp, spec, arrays, time)
    marks = len(time.starts)

    def chunk(carry: Any, inputs: Any) -> Any:
        entering = time.enter(carry[0], inputs[:marks])
        (after,), (y,) = xp.scan(maths.forward, (entering,), maths.blocks(inputs[marks:]), False)
        return (after,), (entering, maths.whole(y), *((after,) if spec.packed else ()))

    matrices = [time.cut(arrays[name]) for name in ("B", "C") if not spec.constant(name)]
    xs = (*time.starts, time.cut(delta), time.cut(delta * x), *matrices)
    (last,), (states, y, *after) = xp.scan(chunk, (time.initial,), xs, False)

    y = _skip(spec, arrays, time.join(y), x)
    if spec.z is not None:
        y = y * xp.silu(xp.astype(arrays["z"], spec.compute_dtype))
    results = {"y": xp.astype(time.clear(y), spec.x.dtype), "states": xp.moveaxis(xp.moveaxis(states, 0, 1), -1, -2)}
    if spec.return_final_state:
        results["final_state"] = xp.moveaxis(time.at_ends(last, *after or (None,)), -1, -2)
    return {name: xp.dense(array) for name, array in results.items()}


def recomputed(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The states, computed again."""
    return {"states": forward(xp, spec, arrays)["states"]}


def log_decays(xp: Namespace, arrays: Arrays, options: Mapping[str, Any]) -> Any:
    """(B, T, .), float32: logs of the factors of each step, of which a state has one or decays faster than one.

    From them follows how far back a state reaches, where time is divided; see `core/forgetting.py`.
    """
    delta = xp.astype(arrays["dt"], "float32")
    if (bias := arrays.get("dt_bias")) is not None:
        delta = delta + xp.astype(bias, "float32")[None, None]
    rates = xp.astype(arrays["A"].real, "float32")
    if options["dt_softplus"]:
        return xp.softplus(delta) * xp.max(rates)[None, None, :, 0]
    return xp.maximum(delta * xp.max(rates)[None, None, :, 0], -delta * xp.max(-rates)[None, None, :, 0])


def backward(xp: Namespace, spec: Spec, arrays: Arrays, wanted: frozenset[str]) -> dict[str, Any]:
    """All gradients by name; the formulas are in README.md."""
    if 0 in spec.x.shape:
        return _gradients_without_steps(xp, spec, arrays, wanted)
    x, delta, slope = _inputs(xp, spec, arrays)
    time = _cut_time(xp, spec, arrays)
    maths = _Maths(xp, spec, arrays, time)
    marks = len(time.ends)
    dout = xp.astype(arrays["dy"], spec.compute_dtype)
    z = None if spec.z is None else xp.astype(arrays["z"], spec.compute_dtype)
    dy = dout if z is None else dout * xp.silu(z)

    def chunk(carry: Any, inputs: Any) -> Any:
        g, *sums = carry
        g = time.leave(g, inputs[:marks])
        blocks = maths.blocks(inputs[marks + 1 :])
        _, (starts,) = xp.scan(maths.entering, (inputs[marks],), blocks, False)
        carry, parts = xp.scan(maths.backward, (g, *sums), (starts, *blocks), True)
        return carry, (*(maths.whole(array) for array in parts), *((carry[0],) if spec.packed else ()))

    varying = [name for name in ("B", "C") if not spec.constant(name)]
    entering = xp.moveaxis(xp.moveaxis(arrays["states"], 1, 0), -1, -2)
    cut = [time.cut(array) for array in (delta, delta * x, *(arrays[name] for name in varying), x, dy)]
    (first, dA, *constants), parts = xp.scan(
        chunk, (time.final_gradient, *maths.no_sums()), (*time.ends, entering, *cut), True
    )
    y, gB, ddelta, *matrices = (time.join(array) for array in parts[: 3 + len(varying)])

    draw = ddelta if slope is None else time.clear(ddelta * slope)
    dx = gB * delta if spec.D is None else gB * delta + arrays["D"][None, None] * dy
    gradients = {"dx": time.clear(dx), "ddt": draw, "dA": xp.moveaxis(dA, 0, 1)}
    for name in ("B", "C"):
        if spec.constant(name):
            gradients[f"d{name}"] = xp.moveaxis(constants.pop(0), 0, 1)
        else:
            gradients[f"d{name}"] = xp.reshape(matrices.pop(0), arrays[name].shape)
    if spec.D is not None:
        gradients["dD"] = xp.sum(time.clear(dy * x), (0, 1))
    if z is not None:
        s = xp.sigmoid(z)
        gradients["dz"] = time.clear(dout * _skip(spec, arrays, y, x) * s * (1 + z * (1 - s)))
    if spec.dt_bias is not None:
        gradients["ddt_bias"] = xp.sum(draw, (0, 1))
    if spec.initial_state is not None:
        gradients["dinitial_state"] = xp.moveaxis(time.at_starts(first, parts[-1]), -1, -2)
    return _as_arguments(xp, spec, gradients)


def _as_arguments(xp: Namespace, spec: Spec, gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Gradients in the dtypes of the arguments."""
    return {name: xp.dense(xp.astype(gradients[name], param.dtype)) for name, param in spec.params(gradients).items()}


def _without_steps(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The outputs for an empty x: the final state is the initial one."""
    results = {name: _zeros(xp, arrays, param) for name, param in spec.params(spec.computes()).items()} | {
        "y": arrays["x"]
    }
    if spec.return_final_state and spec.initial_state is not None:
        results["final_state"] = arrays["initial_state"]
    return results


def _gradients_without_steps(xp: Namespace, spec: Spec, arrays: Arrays, wanted: frozenset[str]) -> dict[str, Any]:
    """As `_without_steps`: the gradient of a final state is that of the initial one, all others are zero."""
    gradients = {name: _zeros(xp, arrays, param) for name, param in spec.params(spec.makes(wanted)).items()}
    if spec.return_final_state and "dinitial_state" in gradients:
        gradients["dinitial_state"] = arrays["dfinal_state"]
    return gradients


def _zeros(xp: Namespace, arrays: Arrays, param: Param) -> Any:
    return xp.zeros(arrays["x"], param.shape, param.dtype)


def _cut_time(xp: Namespace, spec: Spec, arrays: Arrays) -> Rows:
    """The chunks of a call, whose states are (sequences, states, channels)."""

    def state(name: str) -> Any:
        if name in arrays:
            return xp.moveaxis(arrays[name], -1, -2)
        sequences, channels, N = spec.state.shape
        return xp.zeros(arrays["x"], (sequences, N, channels), spec.state_dtype)

    # A single chunk that is no longer than a block has only the steps of the call, but at least two: XLA unrolls a loop
    # of one step, and then fuses other multiplications with additions.
    few = not spec.packed and known(spec.time) and spec.time <= BLOCK
    steps = min(spec.chunk, max(spec.time, 2)) if few else spec.chunk
    geometry = Geometry(spec.time, spec.packed, spec.sequences, steps)
    return cut_time(xp, geometry, state("initial_state"), state("dfinal_state"), arrays.get("cu_seqlens"))


def _inputs(xp: Namespace, spec: Spec, arrays: Arrays) -> tuple[Any, Any, Any]:
    """x and delta, and the derivative of delta with respect to dt, None if that is 1."""
    x, raw = (xp.astype(arrays[name], spec.compute_dtype) for name in ("x", "dt"))
    if spec.dt_bias is not None:
        raw = raw + arrays["dt_bias"][None, None]
    return (x, xp.softplus(raw), xp.sigmoid(raw)) if spec.dt_softplus else (x, raw, None)


def _skip(spec: Spec, arrays: Arrays, y: Any, x: Any) -> Any:
    return y if spec.D is None else y + arrays["D"][None, None] * x


class _Maths:
    """Forward and backward of a block: carried arrays end in (states, channels), results begin with (steps, ...)."""

    def __init__(self, xp: Namespace, spec: Spec, arrays: Arrays, time: Rows) -> None:
        self.xp = xp
        self.spec = spec
        self.steps = time.spec.chunk
        self.block = min(BLOCK, self.steps)
        self.A = _of_steps(xp, arrays["A"])
        self.constants = {n: _of_steps(xp, arrays[n]) for n in ("B", "C") if spec.constant(n)}

    def blocks(self, arrays: Any) -> tuple[Any, ...]:
        """Arrays of a chunk, cut into blocks along a new leading axis."""
        return tuple(self.xp.reshape(a, (-1, self.block, *a.shape[1:])) for a in arrays)

    def whole(self, array: Any) -> Any:
        """The blocks of a chunk, joined."""
        return self.xp.reshape(array, (-1, *array.shape[2:]))

    def no_sums(self) -> tuple[Any, ...]:
        """The gradients of A and of constant B and C before the first block."""
        zero = self.xp.zeros(self.A, tuple(self.A.shape[2:]), self.spec.state_dtype)
        return (zero,) * (1 + len(self.constants))

    def matrices(self, inputs: Any) -> tuple[Any, Any, Any]:
        """B and C, broadcastable to (steps, batch, states, channels), and the remaining inputs."""
        rest = list(inputs)
        B, C = (self.constants[n] if n in self.constants else self._spread(n, rest.pop(0)) for n in ("B", "C"))
        return B, C, rest

    def _spread(self, name: str, matrix: Any) -> Any:
        matrix = self.xp.astype(matrix, self.spec.state_dtype)
        groups = self.spec.groups(name)
        if groups == 1:
            return self.xp.reshape(matrix, (*matrix.shape[:2], self.spec.N, 1))
        shape = (*matrix.shape[:2], self.spec.N, groups, self.spec.channels // groups)
        spread = self.xp.broadcast_to(self.xp.moveaxis(matrix, -1, -2)[..., None], shape)
        return self.xp.reshape(spread, (*shape[:3], self.spec.channels))

    def _gathered(self, name: str, product: Any, factor: Any) -> Any:
        """The sum over the channels of each group of product * factor, as B or C has it."""
        groups = self.spec.groups(name)
        shape = (*product.shape[:3], groups, self.spec.channels // groups)
        products = self.xp.reshape(self.xp.multiply(product, factor[:, :, None]), shape)
        return self.xp.moveaxis(self.xp.sum(products, -1), -1, -2)

    def _states(self, h: Any, delta: Any, du: Any, B: Any) -> tuple[Any, Any]:
        """The decays of a block, and its states: the one that enters, then one after each step."""
        decay = self.xp.exp(self.xp.multiply(delta[:, :, None], self.A))
        return decay, self.xp.recurrence(decay, self.xp.multiply(du[:, :, None], B), h, False)

    def forward(self, carry: Any, inputs: Any) -> Any:
        """Advance the state by a block; return y."""
        delta, du, *matrices = inputs
        B, C, _ = self.matrices(matrices)
        _, states = self._states(carry[0], delta, du, B)
        y = self.xp.sum(self.xp.multiply(C, states[1:]), -2)
        return (states[-1],), (2 * y.real if self.spec.complex else y,)

    def entering(self, carry: Any, inputs: Any) -> Any:
        """Advance the state by a block; return the state that enters it."""
        if self.block == self.steps:
            return carry, (carry[0],)
        delta, du, *matrices = inputs
        B, _, _ = self.matrices(matrices)
        _, states = self._states(carry[0], delta, du, B)
        return (states[-1],), (carry[0],)

    def backward(self, carry: Any, inputs: Any) -> Any:
        """Move the gradient of the state back by a block; return y and the gradients of the block's inputs."""
        xp, A = self.xp, self.A
        g, dA, *constants = carry
        h, delta, du, *rest = inputs
        B, C, (x, dy) = self.matrices(rest)
        decay, states = self._states(h, delta, du, B)
        y = xp.sum(xp.multiply(C, states[1:]), -2)
        if self.spec.complex:
            y, dy = 2 * y.real, 2 * dy
            A, B, C, decay, states = (xp.conj(array) for array in (A, B, C, decay, states))

        dyC = xp.multiply(dy[:, :, None], C)
        passed = xp.recurrence(decay, xp.multiply(decay, dyC), g, True)  # e g of each step, then that of the next block
        gs = dyC + passed[1:]
        dlog = xp.multiply(passed[:-1], states[:-1])  # the gradient of delta A
        dA = dA + xp.sum(xp.multiply(dlog, delta[:, :, None]), (0, 1))
        gB, ddelta = (_real(xp.sum(xp.multiply(a, b), -2)) for a, b in ((gs, B), (dlog, A)))
        results = [y, gB, ddelta + gB * x]
        left = iter(constants)
        sums = []
        for name, product, factor in (("B", gs, du), ("C", states[1:], dy)):
            if name in self.constants:
                sums.append(next(left) + xp.sum(xp.multiply(product, factor[:, :, None]), (0, 1)))
            else:
                results.append(self._gathered(name, product, factor))
        return (passed[0], dA, *sums), tuple(results)


def _of_steps(xp: Namespace, matrix: Any) -> Any:
    """(channels, states) as (1, 1, states, channels), for every step of every row."""
    return xp.moveaxis(matrix, 0, 1)[None, None]


def _real(array: Any) -> Any:
    return array.real if "complex" in str(array.dtype) else array
