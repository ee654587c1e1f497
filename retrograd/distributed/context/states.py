"""Recurrences: the state after a process's steps is sent to the next one, and its gradient back."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from retrograd.core.errors import bad_shape
from retrograd.core.op import Op
from retrograd.core.torch.context import Results
from retrograd.core.torch.launch import DTYPES
from retrograd.core.torch.passes import Options, Shapes, shapes_of, spec_of

from . import reach
from .borders import link_of
from .collectives import Group, gathered
from .layout import Layout
from .passed import Passed
from .steps import passed_on

if TYPE_CHECKING:
    from .parallel import ContextParallel


def recurrence(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """A recurrence over the steps of all processes.

    Where the states at all borders come of few steps before them, all processes compute at once: each first computes
    the state that it sends, from these few steps. If one process finds that its state reaches further, one process
    after another computes its steps, from the state that the one before it has sent. So every step is computed from the
    bits that one process would have. With the order of ranks, states that reach further come of summaries.
    """
    layout, reverse = context.layout, bool(settings.get("reverse"))
    link = link_of(layout, reverse)
    local = of_pieces(context, op, arrays)
    always = {**settings, "return_final_state": True}
    shapes = tuple(shapes_of(tuple(local.values())))
    states = _states(op, shapes, tuple(always.values()))
    device = next(iter(arrays.values())).device
    if local["initial_state"] is not None:
        local["initial_state"] = local["initial_state"].to(states.dtype)
    elif link.source is not None:
        local["initial_state"] = torch.zeros(states.shape, dtype=states.dtype, device=device)
    rows = states.shape[0] if layout.bounds is None else 1
    extremes = torch.full((2 * rows, *states.shape[1:]), reach.LARGEST, dtype=states.dtype, device=device)
    extremes[rows:].neg_()
    key = (op.name, shapes, *always.values())
    past = {} if states.dtype.is_complex else context.past  # complex numbers have no order, so these are measured
    reaches = None
    if layout.divides:
        reaches = reach.Reaches(partial(reach.measured, context, op, local, states.axes, always, link), past, key)
    summed = layout.divides and context.order == "ranks"
    forget = partial(past.pop, key, None)
    passed = Passed(op, run, tuple(local), always, states.axes, extremes, link, context.group, summed, forget)
    y, final = passed_on(passed, reaches, local)
    if not settings["return_final_state"]:
        return y, None
    return y, final_states(layout, context.group, final, reverse)


class States(NamedTuple):
    """The states of a call, and the axis of time of the arguments that have one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    axes: dict[str, int]


@lru_cache
def _states(op: Op, shapes: Shapes, settings: Options) -> States:
    spec = spec_of(op, shapes, settings)
    state = spec["final_state"]
    assert state is not None
    axes = {name: axis for name, axis in spec.axes_of("T").items() if name in op.arguments}
    return States(state.shape, DTYPES[state.dtype], axes)


def of_pieces(context: ContextParallel, op: Op, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call for this process's pieces: with their boundaries, and their rows of the initial states."""
    if context.layout.bounds is None:
        return dict(arrays)
    boundaries = context.boundaries(next(iter(arrays.values())).device)
    return {**arrays, "cu_seqlens": boundaries, "initial_state": _own_rows(context.layout, op, arrays["initial_state"])}


def _own_rows(layout: Layout, op: Op, initial: Tensor | None) -> Tensor | None:
    """The states of the sequences that this rank has pieces of, of those of all packed sequences."""
    if initial is None or layout.bounds is None:
        return None
    sequences = len(layout.bounds) - 1
    if initial.shape[0] != sequences:
        raise bad_shape(op.name, "initial_state", initial.shape, f"{sequences} sequences, as the context's layout has")
    pieces = layout.pieces
    if not pieces:
        return torch.cat([initial[:0], initial.new_zeros(1, *initial.shape[1:])])  # so that it has a gradient, of zeros
    return initial[pieces[0].sequence : pieces[-1].sequence + 1]


def final_states(layout: Layout, group: Group, own: Tensor, reverse: bool) -> Tensor:
    """The states after the last steps of all sequences (the first steps, with `reverse`), in every process."""
    ended = [[p.first if reverse else p.last for p in layout.pieces_of(rank)] for rank in range(layout.world)]
    if layout.bounds is None:
        return gathered(own[: len(own) * any(ended[layout.rank])], [len(own) * any(e) for e in ended], 0, group)
    here = ended[layout.rank]
    start = here.index(True) if True in here else 0
    return gathered(own[start : start + sum(here)], [sum(each) for each in ended], 0, group)
