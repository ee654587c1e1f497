"""The `OpInfo` of a minimal recurrent op in plain PyTorch and JAX, which tests break on purpose.

    h_t = a_t * h_{t-1} + w * x_t,    y_t = h_t

x (B, T, D), a of that shape or broadcast over B, w (D,), states (B, D), or (S, D) where `cu_seqlens` packs S sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.cases import Tensor as Drawn
from retrograd.opinfo.info import OpInfo


def identity(*tensors: Tensor) -> Any:
    return tensors if len(tensors) > 1 else tensors[0]


@dataclass(frozen=True)
class Scan:
    """The op; tests replace a field to break it.

    Attributes:
        step: (a, h, wx, place) -> the next h; the place is the time index in the array.
        enter: (states, sequence) -> the initial state of a sequence.
        leave: (last, before) -> the final state, from the last two states.
        outside: the value of y outside of the sequences.
        bounds: cu_seqlens -> the boundaries that the op uses.
    """

    step: Callable[..., Tensor] = lambda a, h, wx, place: a * h + wx
    enter: Callable[[Tensor, int], Tensor] = lambda states, sequence: states[sequence : sequence + 1]
    leave: Callable[[Tensor, Tensor], Tensor] = lambda last, before: last
    outside: float = 0.0
    bounds: Callable[[Tensor], Tensor] = identity

    def __call__(
        self,
        x: Tensor,
        a: Tensor,
        w: Tensor,
        *,
        initial_state: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        reverse: bool = False,
        return_final_state: bool = False,
    ) -> Any:
        if cu_seqlens is None:
            y, final = self.scan(x, a, w, initial_state, range(x.shape[1]), reverse)
            return (y, final) if return_final_state else y
        bounds = self.bounds(cu_seqlens).tolist()
        ys, finals = [torch.full_like(x[:, : bounds[0]], self.outside)], []
        for place, (start, stop) in enumerate(pairwise(bounds)):
            state = None if initial_state is None else self.enter(initial_state, place)
            y, final = self.scan(x, a, w, state, range(start, stop), reverse)
            ys.append(y)
            finals.append(final)
        y = torch.cat([*ys, torch.full_like(x[:, bounds[-1] :], self.outside)], 1)
        return (y, torch.cat(finals)) if return_final_state else y

    def scan(self, x: Tensor, a: Tensor, w: Tensor, state: Tensor | None, steps: range, reverse: bool) -> Any:
        h = before = x.new_zeros(x[:, 0].shape if x.shape[1] else (x.shape[0], x.shape[2])) if state is None else state
        states = []
        for t in reversed(steps) if reverse else steps:
            before, h = h, self.step(a[:, t], h, w * x[:, t], t)
            states.append(h)
        if reverse:
            states.reverse()
        y = torch.stack(states, 1) if states else x[:, steps.start : steps.stop] * 1
        return y, self.leave(h, before)


def load_jax() -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def scan(
        x: Any, a: Any, w: Any, *, initial_state: Any = None, cu_seqlens: Any = None,
        reverse: bool = False, return_final_state: bool = False,
    ) -> Any:  # fmt: skip
        """Resets the state at each packed sequence; supports no `reverse` of packed sequences and no gaps."""
        h = jnp.zeros((x.shape[0], x.shape[2]), x.dtype) if initial_state is None else initial_state[: x.shape[0]]
        times = jnp.arange(x.shape[1])
        starts = jnp.zeros(0, jnp.int32) if cu_seqlens is None else cu_seqlens[:-1]

        def step(h: Any, inputs: Any) -> Any:
            x_t, a_t, t = inputs
            if cu_seqlens is not None:
                fresh = (starts == t).any()
                entering = jnp.zeros_like(h) if initial_state is None else initial_state[jnp.argmax(starts == t)][None]
                h = jnp.where(fresh, entering, h)
            h = a_t * h + w[None] * x_t
            return h, h

        a = jnp.broadcast_to(a, x.shape)
        final, y = jax.lax.scan(step, h, (jnp.moveaxis(x, 1, 0), jnp.moveaxis(a, 1, 0), times), reverse=reverse)
        y = jnp.moveaxis(y, 0, 1)
        if cu_seqlens is not None:
            final = y[0, cu_seqlens[1:] - 1]
        return (y, final) if return_final_state else y

    return scan


def case(
    name: str, shape: tuple[int, int, int], *, dtype: str = "float32", shared_decay: bool = False,
    state: bool = False, cu_seqlens: tuple[int, ...] | None = None, strided: bool = False, **options: Any,
) -> Case:  # fmt: skip
    B, T, D = shape
    inputs = {
        "x": Drawn(shape, dtype),
        "a": Drawn((1, T, D) if shared_decay else shape, dtype, mean=1.0, law="decay"),
        "w": Drawn((D,), dtype),
    }
    if state:
        inputs["initial_state"] = Drawn((len(cu_seqlens) - 1 if cu_seqlens else B, D), dtype)
    if cu_seqlens:
        inputs["cu_seqlens"] = Drawn((len(cu_seqlens),), "int32", values=cu_seqlens)
    return Case(name, inputs, options, frozenset({"test", "interpreter", *(["strided"] if strided else [])}))


def update(state: Tensor, x: Tensor, a: Tensor, w: Tensor, step: Callable[..., Tensor] = Scan().step) -> Any:
    """One step: (y, the new state)."""
    h = step(a, state, w * x, 0)
    return h, h


D = 64  # enough elements for a budget from a few draws

CASES = [
    case("plain", (3, 9, D)),
    case("state", (3, 9, D), state=True, return_final_state=True),
    case("reverse", (2, 7, D), state=True, return_final_state=True, reverse=True),
    case("shared_decay", (3, 9, D), shared_decay=True),
    case("complex", (2, 9, D), dtype="complex64", state=True, return_final_state=True, strided=True),
    case("packed", (1, 12, D), cu_seqlens=(0, 5, 6, 12), state=True, return_final_state=True, strided=True),
    # Without a state, autograd adds zeros of both signs in its own order.
    case("packed_reverse", (1, 12, D), cu_seqlens=(0, 5, 6, 12), state=True, return_final_state=True, reverse=True),
    case("packed_gaps", (1, 12, D), cu_seqlens=(2, 5, 5, 9), state=True, return_final_state=True),
    case("one_step", (2, 1, D), state=True, return_final_state=True),
]

TOY = OpInfo(
    name="toy",
    arguments=("x", "a", "w", "initial_state", "cu_seqlens"),
    batch_axis={"x": 0, "a": 0, "initial_state": 0},
    time_axis={"x": 1, "a": 1},
    sequence_axis={"initial_state": 0},
    continues=1,
    update=update,
    cases=CASES,
    torch=Scan(),
    jax=load_jax,
    reference=Scan(),
    programs=lambda case, arch: None,
    bytes_moved=lambda case, which: 0,
    flops=lambda case, which: 0,
)


def broken(**parts: Any) -> OpInfo:
    """The `OpInfo` with the op broken in one part."""
    return replace(TOY, torch=Scan(**parts))
