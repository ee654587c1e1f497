"""SSD without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

`xp` is a `retrograd.core.xp.Namespace`. Time is cut into chunks, and chunks into blocks. Within a block,
everything is a matrix product in the dtype of the sums; a state is passed from each block to the next. Except for the
states, all blocks of a chunk are computed at once, as rows of a larger batch. Arrays of blocks are
(rows, heads, steps, channels), or (rows, groups, steps, states) where the heads of a group share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retrograd.core.chunks import Geometry, Rows, cut_time
from retrograd.core.spec import Param, known
from retrograd.core.xp import Namespace, silu_grad

from .op import Spec, in_range

Arrays = Mapping[str, Any]
# Steps of a block. Pairs of steps take BLOCK operations a step, states P N / BLOCK.
BLOCK = 32
# exp(FLOOR) is 0: clamping log decays to FLOOR changes no decay, and keeps the digits of sums of log decays.
FLOOR = {"float32": -104.0, "float64": -746.0}


def forward(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The results y and final_state, and the saved states, by name."""
    if 0 in spec.x.shape:
        return _without_steps(xp, spec, arrays)
    delta, _ = _step_sizes(xp, spec, arrays)
    time = _cut_time(xp, spec, arrays)
    maths = _Maths(xp, spec, arrays)
    marks = len(time.starts)

    def chunk(carry: Any, slices: Any) -> Any:
        h = time.enter(carry[0], slices[:marks])
        blocks = maths.block(*slices[marks:])
        entering, after = maths.states(blocks, h)
        y = maths.joined(maths.outputs(blocks, maths.pairs(blocks), entering))
        return (after,), (h, y, *((after,) if spec.packed else ()))

    xs = (*time.starts, *(time.cut(array) for array in (arrays["x"], delta, arrays["B"], arrays["C"])))
    (last,), (states, y, *after) = xp.scan(chunk, (time.initial,), xs, False)

    y = time.join(y)
    if spec.D is not None:
        y = y + _skip(spec, arrays) * xp.astype(arrays["x"], spec.compute_dtype)
    if spec.z is not None:
        y = y * xp.silu(xp.astype(arrays["z"], spec.compute_dtype))
    states = xp.astype(xp.moveaxis(states, 0, 1), spec.operand_dtype)
    outputs = {"y": xp.astype(time.clear(y), spec.x.dtype), "states": states}
    if spec.return_final_state:
        outputs["final_state"] = time.at_ends(last, *after or (None,))
    return {name: xp.dense(array) for name, array in outputs.items()}


def recomputed(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The saved states, from the arguments."""
    return {"states": forward(xp, spec, arrays)["states"]}


def backward(xp: Namespace, spec: Spec, arrays: Arrays, wanted: frozenset[str]) -> dict[str, Any]:
    """Every gradient by name, wanted or not; the formulas are in README.md."""
    if 0 in spec.x.shape:
        return _gradients_without_steps(xp, spec, arrays)
    x = xp.astype(arrays["x"], spec.compute_dtype)
    delta, slope = _step_sizes(xp, spec, arrays)
    time = _cut_time(xp, spec, arrays)
    maths = _Maths(xp, spec, arrays)
    marks = len(time.ends)
    dout = xp.astype(arrays["dy"], spec.compute_dtype)
    z = None if spec.z is None else xp.astype(arrays["z"], spec.compute_dtype)
    dy = dout if z is None else dout * xp.silu(z)

    def chunk(carry: Any, slices: Any) -> Any:
        g = time.leave(carry[0], slices[:marks])
        state, dy, *rest = slices[marks:]
        blocks = maths.block(*rest)
        pairs = maths.pairs(blocks)
        entering, _ = maths.states(blocks, xp.astype(state, spec.compute_dtype))
        *by_step, before = maths.gradients(blocks, pairs, entering, g, maths.cut(dy))
        if z is not None:
            by_step.append(maths.outputs(blocks, pairs, entering))
        return (before,), (*(maths.joined(array) for array in by_step), *((before,) if spec.packed else ()))

    cut = [time.cut(array) for array in (dy, arrays["x"], delta, arrays["B"], arrays["C"])]
    xs = (*time.ends, xp.moveaxis(arrays["states"], 1, 0), *cut)
    (first,), (*by_step, last) = xp.scan(chunk, (time.final_gradient,), xs, True)
    if not spec.packed:
        by_step.append(last)
    dx, ddelta, dlog, dB, dC, *y = (time.join(array) for array in by_step)

    dx = dx if spec.D is None else dx + _skip(spec, arrays) * dy
    draw = time.clear((ddelta + dlog * arrays["A"][None, None]) * slope)
    gradients = {"dx": time.clear(dx), "ddt": draw, "dA": xp.sum(time.clear(dlog * delta), (0, 1)), "dB": dB, "dC": dC}
    if spec.D is not None:
        axes = (0, 1) if len(spec.D.shape) == 2 else (0, 1, 3)
        gradients["dD"] = xp.sum(time.clear(dy * x), axes)
    if z is not None:
        y_whole = y[0] if spec.D is None else y[0] + _skip(spec, arrays) * x
        gradients["dz"] = time.clear(dout * y_whole * silu_grad(xp, z))
    if spec.dt_bias is not None:
        gradients["ddt_bias"] = xp.sum(draw, (0, 1))
    if spec.initial_state is not None:
        gradients["dinitial_state"] = time.at_starts(first, last)
    dtypes = {name: param.dtype for name, param in spec.params(gradients).items()}
    return {name: xp.dense(xp.astype(array, dtypes[name])) for name, array in gradients.items()}


def update(
    xp: Namespace,
    state: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    z: Any,
    dt_bias: Any,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> tuple[Any, Any]:
    """One step of the recurrence: (y, the new state)."""
    real = str(A.dtype).removeprefix("torch.")
    batch, heads, _ = x.shape
    groups, N = B.shape[1:]
    u, delta = xp.astype(x, real), xp.astype(dt, real)
    delta = delta if dt_bias is None else delta + dt_bias[None]
    delta = _limited(xp, xp.softplus(delta) if dt_softplus else delta, in_range(dt_limit, real))

    def of_heads(matrix: Any) -> Any:
        """(batch, groups, N) as (batch, heads, 1, N)."""
        matrix = xp.reshape(xp.astype(matrix, real), (batch, groups, 1, N))
        return xp.reshape(xp.broadcast_to(matrix, (batch, groups, heads // groups, N)), (batch, heads, 1, N))

    added = (delta[..., None] * u)[..., None] * of_heads(B)
    new = xp.exp(delta * A[None])[..., None, None] * state + added
    y = xp.sum(of_heads(C) * new, -1)
    if D is not None:
        y = y + (D if len(D.shape) == 2 else D[:, None])[None] * u
    if z is not None:
        y = y * xp.silu(xp.astype(z, real))
    return xp.astype(y, str(x.dtype).removeprefix("torch.")), new


@dataclass(frozen=True)
class _Block:
    """The inputs and decays of blocks of steps.

    Attributes:
        x: (rows, heads, steps, P).
        delta: (rows, heads, steps).
        B: (rows, groups, steps, N).
        C: as B.
        grow: the decay from the block's start through each step.
        rest: the decay after each step through the block's end.
        whole: the decay of the whole block, (rows, heads, 1, 1).
        sums: the sum of the log decays from the block's start through each step.
    """

    x: Any
    delta: Any
    B: Any
    C: Any
    grow: Any
    rest: Any
    whole: Any
    sums: Any


@dataclass(frozen=True)
class _Pairs:
    """Matrices over pairs of steps of a block, (rows, heads, target, source).

    Attributes:
        decay: the decay from the source to the target; 0 where the source is later.
        scores: C B^T, for each head.
    """

    decay: Any
    scores: Any


class _Maths:
    """Outputs, states and gradients of the blocks of a chunk."""

    def __init__(self, xp: Namespace, spec: Spec, arrays: Arrays) -> None:
        self.xp = xp
        self.spec = spec
        self.A = xp.reshape(arrays["A"], (1, spec.heads, 1))
        step = xp.arange(arrays["A"], BLOCK)
        self.causal = step[:, None] >= step[None]
        self.later = step[:, None] > step[None]

    def cut(self, array: Any) -> Any:
        """(steps, batch, heads, ...) of a chunk as (rows, heads, steps of a block, ...), in the dtype of the sums."""
        xp = self.xp
        steps, batch, heads, *rest = array.shape
        array = xp.reshape(xp.astype(array, self.spec.compute_dtype), (steps // BLOCK, BLOCK, batch, heads, *rest))
        return xp.reshape(xp.moveaxis(array, 1, 3), (-1, heads, BLOCK, *rest))

    def joined(self, array: Any) -> Any:
        """The inverse of `cut`."""
        rows, heads, steps, *rest = array.shape
        array = self.xp.reshape(array, (-1, self.spec.batch, heads, steps, *rest))
        blocks = rows // self.spec.batch
        return self.xp.reshape(self.xp.moveaxis(array, 3, 1), (blocks * steps, self.spec.batch, heads, *rest))

    def states(self, blocks: _Block, h: Any) -> tuple[Any, Any]:
        """The state that enters each block, and the one that leaves the last, from `h`, which enters the first."""
        return self._carried(
            blocks, h, self.to_states(blocks.x * (blocks.rest * blocks.delta)[..., None], blocks.B), False
        )

    def _carried(self, blocks: _Block, state: Any, added: Any, backward: bool) -> tuple[Any, Any]:
        """The state before each block, in the order of the scan, and the one after the last: state * whole + added."""
        xp, batch = self.xp, self.spec.batch

        def step(carry: Any, slices: Any) -> Any:
            whole, added = slices
            return (carry[0] * whole + added,), carry

        by_block = tuple(xp.reshape(array, (-1, batch, *array.shape[1:])) for array in (blocks.whole, added))
        (last,), (before,) = xp.scan(step, (state,), by_block, backward)
        return xp.reshape(before, (-1, *before.shape[2:])), last

    def block(self, x: Any, delta: Any, B: Any, C: Any) -> _Block:
        """The blocks of a chunk, from its arrays (steps, batch, ...)."""
        xp = self.xp
        x, delta, B, C = (self.cut(array) for array in (x, delta, B, C))
        log = delta * self.A
        floor = FLOOR[self.spec.compute_dtype]
        sums = xp.cumsum(xp.where(log < floor, floor, log), -1, False)
        last = sums[..., -1:]
        return _Block(x, delta, B, C, xp.exp(sums), xp.exp(last - sums), xp.exp(last)[..., None], sums)

    def pairs(self, blocks: _Block) -> _Pairs:
        """The pairs of steps of each block."""
        xp = self.xp
        between = xp.where(self.causal, blocks.sums[..., :, None] - blocks.sums[..., None, :], float("-inf"))
        return _Pairs(xp.exp(between), self.of_heads(xp.matmul(blocks.C, xp.moveaxis(blocks.B, -1, -2))))

    def outputs(self, blocks: _Block, pairs: _Pairs, h: Any) -> Any:
        """Y without skip and gate; `h` is the state that enters each block."""
        within = self.xp.matmul(pairs.scores * pairs.decay * blocks.delta[..., None, :], blocks.x)
        return within + self.from_states(blocks.C, h) * blocks.grow[..., None]

    def gradients(self, blocks: _Block, pairs: _Pairs, h: Any, g: Any, dy: Any) -> list[Any]:
        """Dx without skip, d delta as a factor of x, d (delta A), dB, dC, and the gradient of the entering state.

        Args:
            blocks: the blocks of a chunk.
            pairs: their pairs of steps.
            h: the state that enters each block.
            g: the gradient of the state that leaves the last block.
            dy: the gradient of y.
        """
        xp = self.xp
        dys = dy * blocks.grow[..., None]
        g, before = self._carried(blocks, g, self.to_states(dys, blocks.C), True)
        dpairs = xp.matmul(dy, xp.moveaxis(blocks.x, -1, -2)) * pairs.decay
        dx = xp.matmul(xp.moveaxis(pairs.scores * pairs.decay, -1, -2), dy)  # without the factor delta
        later = self.from_states(blocks.B, g) * blocks.rest[..., None]

        w = dpairs * pairs.scores
        out = xp.sum(dys * self.from_states(blocks.C, h), -1)  # through the state that enters
        into = xp.sum(blocks.x * later, -1)  # through the state that leaves
        both = blocks.whole[..., 0] * xp.sum(xp.sum(h * g, -1), -1)[..., None]
        # The decay of a pair of steps contains the log decays from after its source through its target.
        reach = xp.where(self.later, w * blocks.delta[..., None, :], 0)
        reach = xp.where(self.causal, self.before(reach), 0)
        dlog = xp.sum(reach, -2) + xp.cumsum(out, -1, True) + self.before(blocks.delta * into) + both

        dscores = self.of_groups(dpairs * blocks.delta[..., None, :])
        dC = xp.matmul(dscores, blocks.B) + self.through_states(dys, h)
        added = blocks.x * (blocks.rest * blocks.delta)[..., None]
        dB = xp.matmul(xp.moveaxis(dscores, -1, -2), blocks.C) + self.through_states(added, g)
        dx = (dx + later) * blocks.delta[..., None]
        return [dx, xp.sum(w, -2) + into, dlog, dB, dC, before]

    def before(self, array: Any) -> Any:
        """For each step, the sum over the steps before it: added up, since a sum less its last term loses digits."""
        first = self.xp.zeros(array, (*array.shape[:-1], 1), self.spec.compute_dtype)
        return self.xp.cumsum(self.xp.concat([first, array[..., :-1]], -1), -1, False)

    def of_heads(self, scores: Any) -> Any:
        """(rows, groups, target, source) as (rows, heads, ...)."""
        rows, groups, *steps = scores.shape
        each = self.spec.heads // groups
        spread = self.xp.broadcast_to(scores[:, :, None], (rows, groups, each, *steps))
        return self.xp.reshape(spread, (rows, groups * each, *steps))

    def of_groups(self, array: Any) -> Any:
        """The sum over the heads of each group."""
        rows, heads, *rest = array.shape
        groups = self.spec.groups
        return self.xp.sum(self.xp.reshape(array, (rows, groups, heads // groups, *rest)), 2)

    def from_states(self, matrix: Any, state: Any) -> Any:
        """B or C (rows, groups, steps, N) times the states (rows, heads, P, N): (rows, heads, steps, P)."""
        xp, spec = self.xp, self.spec
        rows, groups, steps, N = matrix.shape
        of_group = xp.reshape(state, (rows, groups, spec.heads // groups * spec.P, N))
        product = xp.matmul(matrix, xp.moveaxis(of_group, -1, -2))
        product = xp.reshape(product, (rows, groups, steps, spec.heads // groups, spec.P))
        return xp.reshape(xp.moveaxis(product, 2, 3), (rows, spec.heads, steps, spec.P))

    def to_states(self, array: Any, matrix: Any) -> Any:
        """(rows, heads, steps, P) times B or C, summed over the steps: (rows, heads, P, N)."""
        rows, _, _, N = matrix.shape
        product = self.xp.matmul(self.xp.moveaxis(self._beside(array), -1, -2), matrix)
        return self.xp.reshape(product, (rows, self.spec.heads, self.spec.P, N))

    def through_states(self, array: Any, state: Any) -> Any:
        """(rows, heads, steps, P) times the states, summed over the heads of a group: (rows, groups, steps, N)."""
        return self.of_groups(self.xp.matmul(array, state))

    def _beside(self, array: Any) -> Any:
        """(rows, heads, steps, P) as (batch, groups, steps, heads of the group and P)."""
        batch, heads, steps, P = array.shape
        groups = self.spec.groups
        array = self.xp.reshape(array, (batch, groups, heads // groups, steps, P))
        return self.xp.reshape(self.xp.moveaxis(array, 2, 3), (batch, groups, steps, heads // groups * P))


def _skip(spec: Spec, arrays: Arrays) -> Any:
    """D as (1, 1, H, P), or with a last axis of size 1."""
    D = arrays["D"][None, None]
    return D if len(D.shape) == 4 else D[..., None]


def _step_sizes(xp: Namespace, spec: Spec, arrays: Arrays) -> tuple[Any, Any]:
    """Delta, and its derivative with respect to dt."""
    raw = xp.astype(arrays["dt"], spec.compute_dtype)
    raw = raw if spec.dt_bias is None else raw + arrays["dt_bias"][None, None]
    one = xp.zeros(raw, raw.shape, spec.compute_dtype) + 1
    delta, slope = (xp.softplus(raw), xp.sigmoid(raw)) if spec.dt_softplus else (raw, one)
    low, high = spec.limits
    return _limited(xp, delta, spec.limits), xp.where((delta < low) | (delta > high), 0, slope)


def log_decays(xp: Namespace, arrays: Arrays, options: Mapping[str, Any]) -> Any:
    """(B, T, .), float32: logs of the factors of each step, of which a state has one or decays faster than one.

    From them follows how far back a state reaches, where time is divided; see `core/forgetting.py`.
    """
    delta = xp.astype(arrays["dt"], "float32")
    if (bias := arrays.get("dt_bias")) is not None:
        delta = delta + xp.astype(bias, "float32")[None, None]
    if options["dt_softplus"]:
        delta = xp.softplus(delta)
    return _limited(xp, delta, options["dt_limit"]) * xp.astype(arrays["A"], "float32")[None, None]


def _limited(xp: Namespace, delta: Any, limit: tuple[float, float]) -> Any:
    """Delta clamped to the limit; NaN stays NaN."""
    low, high = limit
    return xp.where(delta < low, low, xp.where(delta > high, high, delta))


def _cut_time(xp: Namespace, spec: Spec, arrays: Arrays) -> Rows:
    def state(name: str) -> Any:
        array = arrays.get(name)
        return _zeros(xp, arrays, _state(spec)) if array is None else array

    # For rows shorter than a chunk, the chunk has no blocks of padding alone; elsewhere such blocks change no value.
    few = not spec.packed and known(spec.time)
    steps = min(spec.chunk, -(-spec.time // BLOCK) * BLOCK) if few else spec.chunk
    geometry = Geometry(spec.time, spec.packed, spec.sequences, steps)
    return cut_time(xp, geometry, state("initial_state"), state("dfinal_state"), arrays.get("cu_seqlens"))


def _state(spec: Spec) -> Param:
    """Shape and dtype of the states of all sequences."""
    return spec.param("S H P N", "compute_dtype")


def _zeros(xp: Namespace, arrays: Arrays, param: Param) -> Any:
    return xp.zeros(arrays["x"], param.shape, param.dtype)


def _without_steps(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The outputs where x is empty: each final state is the initial state."""
    states = {n: _zeros(xp, arrays, p) for n, p in spec.params(("states", "final_state")).items()}
    outputs = {"y": arrays["x"], **states}
    if spec.return_final_state and spec.initial_state is not None:
        outputs["final_state"] = arrays["initial_state"]
    return outputs


def _gradients_without_steps(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The gradients where x is empty: that of an initial state is that of the final state, all others are zero."""
    names = [f"d{name}" for name in spec.arguments if name != "cu_seqlens"]
    gradients = {name: _zeros(xp, arrays, param) for name, param in spec.params(names).items()}
    if spec.initial_state is not None and spec.return_final_state:
        gradients["dinitial_state"] = arrays["dfinal_state"]
    return gradients
