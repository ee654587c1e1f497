"""The linear scan without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

Time is cut into chunks of CHUNK steps, counted from where the recurrence begins. First all chunks are scanned in
parallel from a state of zero. Then one short scan carries the state from chunk to chunk with the products of their
decays. Then all chunks are scanned again from the states that enter them. A chunk never spans two packed sequences, so
a sequence has the same bits packed as alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retrograd.core.packed import last_not_above, steps
from retrograd.core.spec import known
from retrograd.core.xp import Namespace

from .op import Spec

CHUNK = 64


# (value,), or (real part, imaginary part): on a CPU, complex products depend on their position
Number = tuple[Any, ...]


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """(a, b, initial_state, cu_seqlens) -> (h, final_state)."""
    b = _parts(spec, xp.astype(arrays["b"], spec.compute_dtype))
    a = _parts(spec, xp.broadcast_to(xp.astype(arrays["a"], spec.compute_dtype), spec.b.shape))
    state = _states(xp, spec, arrays.get("initial_state"), b[0])
    h, final = scan(xp, _Chunks.of(xp, spec, spec.reverse, arrays.get("cu_seqlens"), b[0]), a, b, state)
    results = {"h": _result(xp, h, spec.b.dtype)}
    return results | ({"final_state": _result(xp, final, spec.compute_dtype)} if spec.return_final_state else {})


def log_decays(xp: Namespace, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """(B, T, .), float32: logs of the factors of each step, of which a state has one or decays faster than one.

    From them follows how far back a state reaches, where time is divided; see `core/forgetting.py`.
    """
    return xp.log(xp.astype(xp.abs(arrays["a"]), "float32"))


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """(dh, dfinal_state, a, h, initial_state, cu_seqlens) -> (da, db, dinitial_state); formulas in README.md."""
    dh = _parts(spec, xp.astype(arrays["dh"], spec.compute_dtype))
    a = _conj(_parts(spec, xp.broadcast_to(xp.astype(arrays["a"], spec.compute_dtype), spec.b.shape)))
    chunks = _Chunks.of(xp, spec, not spec.reverse, arrays.get("cu_seqlens"), dh[0])
    forwards = _Chunks.of(xp, spec, spec.reverse, arrays.get("cu_seqlens"), dh[0])
    ones = tuple(x + (1 - i) for i, x in enumerate(_states(xp, spec, None, dh[0])))
    decays = tuple(chunks.shifted(xp, x, first) for x, first in zip(a, ones, strict=True))
    g, last = scan(xp, chunks, decays, dh, _states(xp, spec, arrays.get("dfinal_state"), dh[0]))
    gradients = {}
    if "a" in wanted:
        h = _parts(spec, xp.astype(arrays["h"], spec.compute_dtype))
        initial = _states(xp, spec, arrays.get("initial_state"), dh[0])
        earlier = tuple(forwards.shifted(xp, x, first) for x, first in zip(h, initial, strict=True))
        da = tuple(forwards.clear(xp, x) for x in _multiply(_conj(earlier), g))
        axes = tuple(axis for axis, shared in ((0, spec.shares_batch), (2, spec.shares_channels)) if shared)
        if axes:
            da = tuple(xp.reshape(xp.sum(x, axes), spec.a.shape) for x in da)
        gradients["da"] = _result(xp, da, spec.a.dtype)
    if "b" in wanted:
        gradients["db"] = _result(xp, g, spec.b.dtype)
    if "initial_state" in wanted and spec.initial_state is not None:
        ends = tuple(chunks.last(xp, x, empty) for x, empty in zip(a, ones, strict=True))
        gradients["dinitial_state"] = _result(xp, _multiply(ends, last), spec.initial_state.dtype)
    return gradients


def scan(xp: Namespace, chunks: _Chunks, a: Number, b: Number, state: Number) -> tuple[Number, Number]:
    """All states (B, T, D) and the final ones (sequences, D), from the initial ones."""
    # (size, B, chunks, D); a step past the end is the identity.
    a = tuple(chunks.cut(xp, x, 1 - i) for i, x in enumerate(a))
    b = tuple(chunks.cut(xp, x, 0) for x in b)
    h = tuple(chunks.starts(xp, x) for x in state)
    if not known(chunks.time) or chunks.time > chunks.size:
        h = entering(xp, chunks, a, b, h)

    def step(h: Any, x: Any) -> Any:
        h = _add(_multiply(x[: len(a)], h), x[len(a) :])
        return h, h

    last, h = xp.scan(step, tuple(xp.moveaxis(x, 0, 1) for x in h), (*a, *b), False)
    return tuple(chunks.join(xp, x) for x in h), tuple(chunks.ends(xp, xp.moveaxis(x, 1, 0)) for x in last)


def entering(xp: Namespace, chunks: _Chunks, a: Number, b: Number, initial: Number) -> Number:
    """The state that enters each chunk (chunks, B, D), from the initial states of the sequences."""
    parts = len(a)
    none = (xp.zeros(b[0], tuple(b[0].shape[1:]), chunks.dtype),) * parts

    def step(carry: Any, x: Any) -> Any:
        (P, left), (a, b) = ((y[:parts], y[parts:]) for y in (carry, x))
        # The rounding errors of the products add up along all of time.
        return (*_multiply(tuple(xp.wide(part) for part in a), P), *_add(_multiply(a, left), b)), ()

    one = tuple(xp.wide(x + (1 - i)) for i, x in enumerate(none))
    maps, _ = xp.scan(step, (*one, *none), (*a, *b), False)
    P, lost = zip(*(xp.narrow(x, chunks.dtype) for x in maps[:parts]), strict=True)

    def carry_over(carry: Any, x: Any) -> Any:
        P, lost, l, initial, first = (*(x[i * parts : (i + 1) * parts] for i in range(4)), x[-1])  # noqa: E741
        H = _where(xp, first, initial, carry)
        P, lost = (_unless_overflown(xp, part, H) for part in (P, lost))
        return _add(_multiply(P, H), _add(_multiply(lost, H), l)), H

    over = tuple(xp.moveaxis(x, 1, 0) for x in (*P, *lost, *maps[parts:]))
    nothing = tuple(xp.zeros(x, tuple(x.shape[1:]), chunks.dtype) for x in initial)
    _, H = xp.scan(carry_over, nothing, (*over, *initial, chunks.firsts(xp, none[0])), False)
    return H


def _multiply(x: Number, y: Number) -> Number:
    if len(x) == 1:
        return (x[0] * y[0],)
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _add(x: Number, y: Number) -> Number:
    return tuple(a + b for a, b in zip(x, y, strict=True))


def _conj(x: Number) -> Number:
    return x if len(x) == 1 else (x[0], -x[1])


def _where(xp: Namespace, condition: Any, x: Number, y: Number) -> Number:
    return tuple(xp.where(condition, a, b) for a, b in zip(x, y, strict=True))


def _unless_overflown(xp: Namespace, P: Number, H: Number) -> Number:
    """P, or 0 where it has overflowed and H is 0, so that their product is 0."""
    # Selecting the product instead of P would make its derivative with respect to H 0 there, instead of P.
    nothing = H[0] == 0 if len(H) == 1 else (H[0] == 0) & (H[1] == 0)
    return tuple(xp.where(nothing & (part - part != 0), 0, part) for part in P)


def _parts(spec: Spec, x: Any) -> Number:
    return (x.real, x.imag) if spec.complex else (x,)


def _result(xp: Namespace, x: Number, dtype: str) -> Any:
    return xp.dense(xp.astype(xp.complex(*x) if len(x) == 2 else x[0], dtype))


def _states(xp: Namespace, spec: Spec, states: Any, like: Any) -> Number:
    """States (sequences, D) in the dtype of the arithmetic; zeros if absent."""
    if states is None:
        return (xp.zeros(like, (spec.sequences, spec.channels), _real(spec)),) * (2 if spec.complex else 1)
    return _parts(spec, xp.astype(states, spec.compute_dtype))


def _real(spec: Spec) -> str:
    """Dtype of the arithmetic's real numbers."""
    return {"complex64": "float32", "complex128": "float64"}.get(spec.compute_dtype, spec.compute_dtype)


@dataclass(frozen=True)
class _Chunks:
    """How time is cut into chunks, for one direction and a batch of rows of equal length.

    Attributes:
        time: T.
        size: steps of a chunk; at most T, but at least 2.
        reverse: whether the recurrence begins at the last step.
        dtype: dtype of the arithmetic.
    """

    time: int
    size: int
    reverse: bool
    dtype: str

    @staticmethod
    def of(xp: Namespace, spec: Spec, reverse: bool, cu_seqlens: Any, like: Any) -> _Chunks:
        # XLA unrolls a loop of one step, and then fuses other multiplications with additions.
        size = min(CHUNK, max(spec.time, 2)) if known(spec.time) else CHUNK
        if cu_seqlens is None:
            return _Chunks(spec.time, size, reverse, _real(spec))
        return _Packed.from_bounds(xp, spec, size, reverse, cu_seqlens, like)

    @property
    def count(self) -> int:
        """The number of chunks of a row; one where there are no steps."""
        return 1 if self.time == 0 else -(-self.time // self.size)

    def cut(self, xp: Namespace, x: Any, other: int) -> Any:
        """(B, T, D) -> (size, B, chunks, D), each chunk in the order of the recurrence, padded with `other`."""
        B, T, D = x.shape
        missing = xp.zeros(x, (B, self.count * self.size - T, D), self.dtype) + other
        if self.reverse:
            x = xp.concat([missing, x], 1)[:, self._backwards(xp, x, self.count * self.size)]
        else:
            x = xp.concat([x, missing], 1)
        return xp.moveaxis(xp.reshape(x, (B, self.count, self.size, D)), 2, 0)

    def join(self, xp: Namespace, x: Any) -> Any:
        """The inverse of `cut`."""
        x = xp.moveaxis(x, 0, 2)
        B, chunks, _, D = x.shape
        x = xp.reshape(x, (B, chunks * self.size, D))[:, : self.time]
        return x[:, self._backwards(xp, x, self.time)] if self.reverse else x

    def clear(self, xp: Namespace, x: Any) -> Any:
        """(B, T, D) with zeros at the steps outside of every sequence."""
        return x

    def firsts(self, xp: Namespace, like: Any) -> Any:
        """Whether a chunk is the first of its sequence, (chunks, 1, 1)."""
        return (xp.arange(like, self.count) == 0)[:, None, None]

    def starts(self, xp: Namespace, state: Any) -> Any:
        """The initial state of each chunk's sequence."""
        return xp.broadcast_to(state[None], (self.count, *state.shape))

    def ends(self, xp: Namespace, after: Any) -> Any:
        """The final state of each sequence, from the states after each chunk."""
        return after[-1]

    def shifted(self, xp: Namespace, x: Any, first: Any) -> Any:
        """x of the step before, in the order of the recurrence; `first` (sequences, D) at the first step."""
        if self.time == 0:
            return x
        first = first[:, None]
        return xp.concat([x[:, 1:], first] if self.reverse else [first, x[:, :-1]], 1)

    def last(self, xp: Namespace, x: Any, empty: Any) -> Any:
        """x at the last step of each sequence; `empty` for a sequence without steps."""
        if self.time == 0:
            return empty
        return x[:, 0] if self.reverse else x[:, -1]

    def _backwards(self, xp: Namespace, like: Any, size: int) -> Any:
        return size - 1 - xp.arange(like, size)


@dataclass(frozen=True)
class _Packed(_Chunks):
    """Packed sequences: the chunks of sequence s begin at chunk bounds[s] // size + s, enough for every length.

    Attributes:
        bounds: (sequences + 1,), non-decreasing, between 0 and T.
        times: (chunks * size,), the time of every step of every chunk.
        exists: (chunks * size,), whether the step belongs to a sequence.
        sequence: (chunks,), the sequence of each chunk; first: whether the chunk is its first.
        places: (T,), the position of each time in the chunks; inside: whether the time belongs to a sequence.
        owner: (T,), the last sequence that begins at or before each time, else 0.
    """

    bounds: Any
    times: Any
    exists: Any
    sequence: Any
    first: Any
    places: Any
    inside: Any
    owner: Any

    @staticmethod
    def from_bounds(xp: Namespace, spec: Spec, size: int, reverse: bool, cu_seqlens: Any, like: Any) -> _Packed:
        T, S = spec.time, spec.sequences
        limited = xp.clip(cu_seqlens, 0, T)
        _, (bounds,) = xp.scan(_rise(xp), (limited[0],), (limited,), False)
        chunks = T // size + S
        sequences = xp.arange(like, S)
        origins = bounds[:-1] // size + sequences
        number = xp.arange(like, chunks)
        sequence = last_not_above(xp, origins, number)
        sequence = xp.where(sequence < 0, 0, sequence)
        inner = number - origins[sequence]
        local = inner[:, None] * size + xp.arange(like, size)[None, :]
        lengths = bounds[1:] - bounds[:-1]
        length = lengths[sequence][:, None]
        exists = (local >= 0) & (local < length)
        clipped = xp.where(exists, local, local * 0)
        times = bounds[sequence][:, None] + (length - 1 - clipped if reverse else clipped)
        times = xp.where(exists, times, times * 0)

        of = steps(xp, bounds, T)
        step = bounds[1:][of.owner] - 1 - xp.arange(like, T) if reverse else of.offset
        step = xp.where(of.inside, step, step * 0)
        places = (origins[of.owner] + step // size) * size + step % size
        return _Packed(
            T, size, reverse, _real(spec), bounds, xp.reshape(times, (-1,)), xp.reshape(exists, (-1,)), sequence,
            inner == 0, places, of.inside, of.owner,
        )  # fmt: skip

    def cut(self, xp: Namespace, x: Any, other: int) -> Any:
        D = x.shape[2]
        if self.time == 0:
            x = xp.zeros(x, (1, 1, D), self.dtype)
        x = xp.where(self.exists[:, None], x[0][self.times], xp.zeros(x, (1, D), self.dtype) + other)
        return xp.moveaxis(xp.reshape(x, (1, self.sequence.shape[0], self.size, D)), 2, 0)

    def join(self, xp: Namespace, x: Any) -> Any:
        D = x.shape[-1]
        return self.clear(xp, xp.reshape(xp.moveaxis(x, 0, 2), (self.exists.shape[0], D))[self.places][None])

    def clear(self, xp: Namespace, x: Any) -> Any:
        return xp.where(self.inside[:, None], x, 0)

    def firsts(self, xp: Namespace, like: Any) -> Any:
        return self.first[:, None, None]

    def starts(self, xp: Namespace, state: Any) -> Any:
        return state[self.sequence][:, None]

    def ends(self, xp: Namespace, after: Any) -> Any:
        lengths = self.bounds[1:] - self.bounds[:-1]
        origins = self.bounds[:-1] // self.size + xp.arange(after, lengths.shape[0])
        inner = xp.where(lengths > 0, (lengths - 1) // self.size, lengths * 0)
        return after[origins + inner][:, 0]

    def shifted(self, xp: Namespace, x: Any, first: Any) -> Any:
        if self.time == 0:
            return x
        start, stop = self.bounds[:-1][self.owner], self.bounds[1:][self.owner]
        t = xp.arange(x, self.time)
        begins = t == (stop - 1 if self.reverse else start)
        neighbour = t + (1 if self.reverse else -1)
        neighbour = xp.where(begins | ~self.inside, t, neighbour)
        return xp.where(begins[:, None], first[self.owner], x[0][neighbour])[None]

    def last(self, xp: Namespace, x: Any, empty: Any) -> Any:
        if self.time == 0:
            return empty
        start, stop = self.bounds[:-1], self.bounds[1:]
        t = xp.where(stop > start, start if self.reverse else stop - 1, start * 0)
        return xp.where((stop > start)[:, None], x[0][t], empty)


def _rise(xp: Namespace) -> Any:
    def step(carry: Any, x: Any) -> Any:
        highest = xp.where(x[0] > carry[0], x[0], carry[0])
        return (highest,), (highest,)

    return step
