"""The gated delta rule without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

`xp` is a `retrograd.core.xp.Namespace`. Time is cut into chunks, whose first states are saved, and chunks into blocks.
Longer chunks than LONGEST, to which each sequence would be padded, are cut into shorter ones, and nothing is saved.
Within a block everything is a matrix product; a state is passed from each block to the next. Arrays of blocks are
(rows, heads, steps, channels). Formulas and names are those of README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from retrograd.core.chunks import Geometry, Rows, cut_time
from retrograd.core.xp import Namespace

from .op import SMALLEST, Spec, factor_of

Arrays = Mapping[str, Any]
BLOCK, BLOCK_OF_CHANNELS = 64, 16  # steps of a block; where channels have decays of their own, these are of pairs
LONGEST, SHORTER = 256, 128  # steps of a chunk
# exp(FLOOR) is 0: clamping log decays to FLOOR changes no decay, and keeps the digits of sums of log decays.
FLOOR = {"float32": -104.0, "float64": -746.0}
NAMES = ("q", "k", "v", "g", "beta")


def forward(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The results o and final_state, and the saved states, by name."""
    if 0 in spec.v.shape:
        return _without_steps(xp, spec, arrays)
    time = _cut_time(xp, spec, arrays)
    last, states, o, after = _walked(xp, spec, arrays, time)
    outputs = {"o": xp.astype(time.clear(time.join(o)), spec.v.dtype)}
    outputs |= _unused(xp, spec, arrays)
    if _saves(spec):
        outputs["states"] = xp.astype(xp.moveaxis(states, 0, 1), spec.v.dtype)
    if spec.return_final_state:
        outputs["final_state"] = time.at_ends(last, after)
    return {name: xp.dense(array) for name, array in outputs.items()}


def _walked(xp: Namespace, spec: Spec, arrays: Arrays, time: Rows) -> tuple[Any, Any, Any, Any]:
    """The last state, those that enter chunks, the results; of packed sequences those that leave chunks, too."""
    maths, marks = _Maths(xp, spec), len(time.starts)

    def chunk(carry: Any, slices: Any) -> Any:
        S = time.enter(carry[0], slices[:marks])
        (after,), (o, _) = xp.scan(maths.forward, (S,), maths.blocks(slices[marks:]), False)
        return (after,), (S, maths.joined(o), *((after,) if spec.packed else ()))

    xs = (*time.starts, *(time.cut(array) for array in _inputs(xp, spec, arrays)))
    (last,), (states, o, *after) = xp.scan(chunk, (time.initial,), xs, False)
    return last, states, o, after[0] if after else None


def recomputed(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The saved states, from the arguments."""
    if not _saves(spec):
        return _unused(xp, spec, arrays)
    return {name: array for name, array in forward(xp, spec, arrays).items() if name in spec.reads(frozenset())}


def backward(xp: Namespace, spec: Spec, arrays: Arrays, wanted: frozenset[str]) -> dict[str, Any]:
    """Every gradient by name, wanted or not."""
    if 0 in spec.v.shape:
        return _gradients_without_steps(xp, spec, arrays)
    time, maths = _cut_time(xp, spec, arrays), _Maths(xp, spec)
    marks = len(time.ends)

    def chunk(carry: Any, slices: Any) -> Any:
        G = time.leave(carry[0], slices[:marks])
        S, do, *inputs = slices[marks:]
        S = xp.astype(S, spec.compute_dtype)
        blocks = maths.blocks(inputs)
        _, (_, entering) = xp.scan(maths.forward, (S,), blocks, False)
        (before,), gradients = xp.scan(maths.backward, (G,), (entering, *maths.blocks((do,)), *blocks), True)
        return (before,), (*map(maths.joined, gradients), *((before,) if spec.packed else ()))

    do = xp.astype(arrays["do"], spec.compute_dtype)
    cut = [time.cut(array) for array in (do, *_inputs(xp, spec, arrays))]
    states = xp.moveaxis(arrays["states"], 1, 0) if _saves(spec) else _walked(xp, spec, arrays, time)[1]
    xs = (*time.ends, states, *cut)
    (first,), (*by_step, last) = xp.scan(chunk, (time.final_gradient,), xs, True)
    if not spec.packed:
        by_step.append(last)
        last = None
    gradients = dict(zip(("dq", "dk", "dv", "dg", "dbeta"), map(time.join, by_step), strict=True))
    for name in ("q", "k"):
        gradients[f"d{name}"] = _of_key_heads(xp, spec, gradients[f"d{name}"])
        if spec.normalize_qk:
            gradients[f"d{name}"] = time.clear(_through_norm(xp, spec, arrays[name], gradients[f"d{name}"]))
    if spec.initial_state is not None:
        gradients["dinitial_state"] = time.at_starts(first, last)
    dtypes = {name: param.dtype for name, param in spec.params(gradients).items()}
    return {name: xp.dense(xp.astype(array, dtypes[name])) for name, array in gradients.items()}


def update(
    xp: Namespace,
    state: Any,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None,
    normalize_qk: bool,
) -> tuple[Any, Any]:
    """One step of the recurrence: (o, the new state)."""
    real = str(state.dtype).removeprefix("torch.")
    (batch, heads, _), (groups, K) = v.shape, q.shape[1:]

    def of_heads(rows: Any) -> Any:
        """(batch, key heads, K) as (batch, heads, 1, K)."""
        rows = xp.astype(rows, real)
        rows = rows * _scale(xp, rows) if normalize_qk else rows
        spread = xp.broadcast_to(rows[:, :, None], (batch, groups, heads // max(groups, 1), K))
        return xp.reshape(spread, (batch, heads, 1, K))

    keys, decay = of_heads(k), xp.exp(xp.astype(g, real))
    state = state * (decay[..., None, None] if len(g.shape) == 2 else decay[:, :, None])
    wrong = xp.astype(v, real) - xp.sum(state * keys, -1)
    state = state + (xp.astype(beta, real)[..., None] * wrong)[..., None] * keys
    o = xp.sum(state * of_heads(q), -1) * factor_of(scale, K)
    return xp.astype(o, str(v.dtype).removeprefix("torch.")), state


class _Block(NamedTuple):
    """A block of steps: its arrays, and what follows from them.

    Attributes:
        q, k, v: (rows, heads, steps, channels).
        beta: (rows, heads, steps, 1).
        pairs: decays from a step to a later one, (rows, heads, target, source), or (..., K); 0 where it is not later.
        grow, rest: decays from the block's start through a step, and after it through the block's end; (..., 1 or K).
        end: the decay of the whole block, (rows, heads, 1, 1 or K).
        KK, QK: products of keys and of queries with keys, with decays, (rows, heads, target, source).
        T: the inverse, (rows, heads, target, source).
        D: what is written, before beta, (rows, heads, steps, V).
    """

    q: Any
    k: Any
    v: Any
    beta: Any
    pairs: Any
    grow: Any
    rest: Any
    end: Any
    KK: Any
    QK: Any
    T: Any
    D: Any


class _Maths:
    """Outputs, states and gradients of blocks."""

    def __init__(self, xp: Namespace, spec: Spec) -> None:
        self.xp, self.spec = xp, spec
        self.steps = BLOCK_OF_CHANNELS if spec.of_channels else BLOCK
        self.chunk = _chunk(spec)

    def blocks(self, arrays: Any) -> tuple[Any, ...]:
        """(steps, rows, heads, ...) of a chunk as (blocks, rows, heads, steps of a block, ...)."""
        xp, found = self.xp, []
        for array in arrays:
            array = xp.reshape(array, (self.chunk // self.steps, self.steps, *array.shape[1:]))
            found.append(xp.moveaxis(array, 1, 3))
        return tuple(found)

    def joined(self, array: Any) -> Any:
        """The inverse of `blocks`, for one array."""
        array = self.xp.moveaxis(array, 3, 1)
        return self.xp.reshape(array, (self.chunk, *array.shape[2:]))

    def forward(self, carry: Any, arrays: Any) -> Any:
        """The state that leaves a block; its o, and the state that entered."""
        xp, (S,) = self.xp, carry
        of = self._block(S, arrays)
        o = xp.matmul(of.q * of.grow, _t(xp, S)) + xp.matmul(of.QK * _t(xp, of.beta), of.D)
        after = S * of.end + xp.matmul(_t(xp, of.beta * of.D), of.k * of.rest)
        return (after,), (self.spec.factor * o, S)

    def backward(self, carry: Any, arrays: Any) -> Any:
        """The gradient of the state that entered a block, and those of q, k, v, g and beta."""
        xp, (G,) = self.xp, carry
        S, do, *inputs = arrays
        of = self._block(S, inputs)
        do = self.spec.factor * do
        row = _t(xp, of.beta)  # beta of the sources
        strict, one = self._masks(do)
        dv = xp.matmul(of.k * of.rest, _t(xp, G)) * of.beta + xp.matmul(_t(xp, of.QK * row), do)
        dv = xp.matmul(_t(xp, of.T), dv)
        x1, x2, x3 = of.grow * xp.matmul(do, S), of.grow * xp.matmul(dv, S), of.rest * xp.matmul(of.D, G)
        P, N = xp.matmul(do, _t(xp, of.D)), -xp.matmul(dv, _t(xp, of.D))
        own = xp.sum(xp.where(one, P, 0), -1)[..., None]  # a step's pair with itself has no decay
        P, N = (xp.where(strict, pairs, 0) for pairs in (P, N))
        to_q, to_k = self._sources(P * row, of.k, of.pairs), self._sources(N * row, of.k, of.pairs)
        source = self._targets(P, of.q, of.pairs) + self._targets(N, of.k, of.pairs)
        dq = x1 + to_q + own * of.beta * of.k
        dk = to_k - x2 + of.beta * (source + own * of.q + x3)
        dbeta = xp.sum(of.k * (source + own * of.q + x3), -1)
        inner = of.q * (to_q + x1) + of.k * (to_k - x2) - of.beta * of.k * source
        after, beyond = of.beta * of.k * x3, xp.sum(of.end * G * S, -2)[..., None, :]
        if not self.spec.of_channels:
            inner, after, beyond = (xp.sum(array, -1)[..., None] for array in (inner, after, beyond))
        first = xp.zeros(after, (*after.shape[:2], 1, after.shape[3]), self.spec.compute_dtype)
        # Sums over the steps before a step are made of their own terms: a running sum less its last term loses digits.
        before = xp.cumsum(xp.concat([first, after[:, :, :-1]], 2), 2, False)
        dg = xp.cumsum(inner, 2, True) + before + beyond
        dg = dg if self.spec.of_channels else dg[..., 0]
        G = G * of.end + xp.matmul(_t(xp, do), of.q * of.grow) - xp.matmul(_t(xp, dv), of.k * of.grow)
        return (G,), (dq, dk, dv, dg, dbeta)

    def _block(self, S: Any, arrays: Any) -> _Block:
        """A block, from its arrays and the state that enters it."""
        xp = self.xp
        q, k, v, g, beta = arrays
        beta, g = beta[..., None], g if self.spec.of_channels else g[..., None]
        floor = FLOOR[self.spec.compute_dtype]
        sums = xp.cumsum(xp.where(g < floor, floor, g), 2, False)
        last = sums[:, :, -1:]
        strict, one = self._masks(q)
        within = strict | one
        if self.spec.of_channels:
            between = xp.where(within[..., None], sums[:, :, :, None] - sums[:, :, None], float("-inf"))
        else:
            between = xp.where(within, sums - _t(xp, sums), float("-inf"))
        pairs = xp.exp(between)
        KK, QK = self._products(k, k, pairs), self._products(q, k, pairs)
        T = self._inverse(xp.where(strict, KK * _t(xp, beta), 0))
        grow = xp.exp(sums)
        D = xp.matmul(T, v - xp.matmul(k * grow, _t(xp, S)))
        return _Block(q, k, v, beta, pairs, grow, xp.exp(last - sums), xp.exp(last), KK, QK, T, D)

    def _masks(self, like: Any) -> tuple[Any, Any]:
        """Whether a target is later than a source, and whether it is the same step."""
        step = self.xp.arange(like, self.steps)
        return step[:, None] > step[None], step[:, None] == step[None]

    def _products(self, targets: Any, sources: Any, pairs: Any) -> Any:
        """Targets times sources, with their decays: (rows, heads, target, source)."""
        xp = self.xp
        if self.spec.of_channels:
            return xp.sum(targets[:, :, :, None] * sources[:, :, None] * pairs, -1)
        return xp.matmul(targets, _t(xp, sources)) * pairs

    def _sources(self, weights: Any, sources: Any, pairs: Any) -> Any:
        """For each target the sum of the sources, with weights and decays: (rows, heads, target, K)."""
        xp = self.xp
        if self.spec.of_channels:
            return xp.sum(weights[..., None] * sources[:, :, None] * pairs, 3)
        return xp.matmul(weights * pairs, sources)

    def _targets(self, weights: Any, targets: Any, pairs: Any) -> Any:
        """For each source the sum of the targets, with weights and decays: (rows, heads, source, K)."""
        xp = self.xp
        if self.spec.of_channels:
            return xp.sum(weights[..., None] * targets[:, :, :, None] * pairs, 2)
        return xp.matmul(_t(xp, weights * pairs), targets)

    def _inverse(self, A: Any) -> Any:
        """(I + A)^-1 of matrices below the diagonal, from that of blocks on it, each twice as large as before."""
        xp = self.xp
        step = xp.arange(A, self.steps)
        X = xp.where(step[:, None] == step[None], xp.zeros(A, A.shape, self.spec.compute_dtype) + 1, 0)
        size = 1
        while size < self.steps:
            block, larger = step // size, step // (2 * size)
            below = (block[:, None] != block[None]) & (larger[:, None] == larger[None])
            X = X - xp.matmul(xp.matmul(X, xp.where(below, A, 0)), X)
            size *= 2
        return X


def _t(xp: Namespace, x: Any) -> Any:
    """Matrices with rows for columns."""
    return xp.moveaxis(x, -1, -2)


def _inputs(xp: Namespace, spec: Spec, arrays: Arrays) -> list[Any]:
    """q, k, v, g and beta in the dtype of the sums, q and k normalized and for every head."""
    found = {name: xp.astype(arrays[name], spec.compute_dtype) for name in NAMES}
    for name in ("q", "k"):
        x = found[name]
        x = x * _scale(xp, x) if spec.normalize_qk else x
        each = spec.heads // max(spec.key_heads, 1)
        spread = xp.broadcast_to(x[:, :, :, None], (*x.shape[:3], each, spec.K))
        found[name] = xp.reshape(spread, (*x.shape[:2], spec.heads, spec.K))
    return list(found.values())


def _scale(xp: Namespace, x: Any) -> Any:
    """The factor that normalizes rows, (..., 1)."""
    return 1 / xp.sqrt(xp.sum(x * x, -1)[..., None] + SMALLEST)


def _of_key_heads(xp: Namespace, spec: Spec, dx: Any) -> Any:
    """The sum over the heads of a key head."""
    each = spec.heads // max(spec.key_heads, 1)
    return xp.sum(xp.reshape(dx, (*dx.shape[:2], spec.key_heads, each, spec.K)), 3)


def _through_norm(xp: Namespace, spec: Spec, x: Any, dx: Any) -> Any:
    """The gradient of rows, from that of the normalized ones."""
    x = xp.astype(x, spec.compute_dtype)
    scale = _scale(xp, x)
    unit = x * scale
    return scale * (dx - unit * xp.sum(unit * dx, -1)[..., None])


def _unused(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The saved arrays that are for kernels alone: zeros."""
    params = spec.params(("inverse", "scores") if _saves(spec) else ("inverse", "scores", "states"))
    return {name: xp.zeros(arrays["v"], param.shape, param.dtype) for name, param in params.items()}


def _without_steps(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The outputs where v is empty: each final state is the initial state."""
    states = spec.params(("states", "final_state"))
    outputs = {name: xp.zeros(arrays["v"], param.shape, param.dtype) for name, param in states.items()}
    if spec.return_final_state and spec.initial_state is not None:
        outputs["final_state"] = arrays["initial_state"]
    return {"o": arrays["v"], **outputs, **_unused(xp, spec, arrays)}


def _gradients_without_steps(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """The gradients where v is empty: that of an initial state is that of the final state, all others are zero."""
    names = [f"d{name}" for name in spec.arguments if name != "cu_seqlens"]
    gradients = {name: xp.zeros(arrays["v"], param.shape, param.dtype) for name, param in spec.params(names).items()}
    if spec.initial_state is not None and spec.return_final_state:
        gradients["dinitial_state"] = arrays["dfinal_state"]
    return gradients


def _saves(spec: Spec) -> bool:
    """Whether states are saved."""
    return spec.chunk <= LONGEST


def _chunk(spec: Spec) -> int:
    """Steps of a chunk."""
    return spec.chunk if _saves(spec) else SHORTER


def _cut_time(xp: Namespace, spec: Spec, arrays: Arrays) -> Rows:
    def state(name: str) -> Any:
        array = arrays.get(name)
        shape = (spec.sequences, spec.heads, spec.V, spec.K)
        return xp.zeros(arrays["q"], shape, spec.compute_dtype) if array is None else array

    geometry = Geometry(spec.time, spec.packed, spec.sequences, _chunk(spec))
    return cut_time(xp, geometry, state("initial_state"), state("dfinal_state"), arrays.get("cu_seqlens"))
