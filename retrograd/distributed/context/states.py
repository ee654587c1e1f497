"""Recurrences: the state after a process's steps is sent to the next one, and its gradient back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.errors import bad_shape
from retrograd.core.op import Op
from retrograd.core.torch.context import Results
from retrograd.core.torch.launch import DTYPES
from retrograd.core.torch.passes import shapes_of, spec_of

from .collectives import Group, gathered, real
from .layout import Layout

if TYPE_CHECKING:
    from .parallel import ContextParallel


class Link(NamedTuple):
    """From whom a process's first state comes, and to whom its last one goes.

    Attributes:
        source, target: ranks of the group; None where no sequence crosses that border.
        enters, leaves: the rows of the states that cross.
    """

    source: int | None
    target: int | None
    enters: slice
    leaves: slice


def recurrence(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """A recurrence over the steps of all processes.

    One process after another computes its steps, from the state that the one before it has sent. So every step is
    computed from the bits that one process would have.
    """
    layout, reverse = context.layout, bool(settings.get("reverse"))
    link = link_of(layout, reverse)
    local = of_pieces(context, op, arrays)
    always = {**settings, "return_final_state": True}
    state = spec_of(op, shapes_of(tuple(local.values())), tuple(always.values()))["final_state"]
    assert state is not None
    dtype = DTYPES[state.dtype]
    if local["initial_state"] is not None:
        local["initial_state"] = local["initial_state"].to(dtype)
    elif link.source is not None:
        local["initial_state"] = torch.zeros(state.shape, dtype=dtype, device=next(iter(arrays.values())).device)
    passed = Passed(run, tuple(local), always, link, context.group)
    y, final = _PassedOn.apply(passed, *local.values())
    if not settings["return_final_state"]:
        return y, None
    return y, final_states(layout, context.group, final, reverse)


def link_of(layout: Layout, reverse: bool) -> Link:
    """The neighbours of a rank in the direction of a scan."""
    before = layout.rank - 1 if layout.crosses(layout.rank) else None
    after = layout.rank + 1 if layout.crosses(layout.rank + 1) else None
    first, last = slice(None), slice(None)
    if layout.bounds is not None:
        count = len(layout.cu_seqlens) - 1
        first, last = slice(0, 1), slice(count - 1, count)
    return Link(after, before, last, first) if reverse else Link(before, after, first, last)


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


class Passed(NamedTuple):
    """What a call needs beside its arrays: their names, and how states are passed on."""

    run: Callable[..., Results]
    names: tuple[str, ...]
    settings: dict[str, Any]
    link: Link
    group: Group


class _PassedOn(torch.autograd.Function):
    """The op between two messages, in both directions; the op's own graph is kept in between."""

    @staticmethod
    def forward(ctx: Any, passed: Passed, *tensors: Tensor | None) -> Results:
        link, group, record = passed.link, passed.group, any(ctx.needs_input_grad)
        needs = dict(zip(passed.names, ctx.needs_input_grad[1:], strict=True))
        needs["initial_state"] |= record and link.source is not None
        arrays = {n: None if t is None else t.detach() for n, t in zip(passed.names, tensors, strict=True)}
        if link.source is not None:
            state = arrays["initial_state"]
            assert state is not None
            arrays["initial_state"] = _received(state, link.enters, link.source, group)
        wanted = {name: t.requires_grad_() for name, t in arrays.items() if t is not None and needs[name]}
        with torch.set_grad_enabled(record):
            y, final = passed.run(arrays, passed.settings)
        assert y is not None
        assert final is not None
        if link.target is not None:
            _send(final[link.leaves], link.target, group)
        if record:
            ctx.passed, ctx.graph = passed, (wanted, (y, final))
        return y.detach(), final.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.graph is None:
            raise RuntimeError("a backward pass over a context's border was run before, expected only one")
        passed, (wanted, results) = ctx.passed, ctx.graph
        ctx.graph = None
        link, group = passed.link, passed.group
        if link.target is not None:
            dfinal = _received(dfinal, link.leaves, link.target, group)
        found = torch.autograd.grad(results, list(wanted.values()), (dy, dfinal))
        gradients = dict(zip(wanted, found, strict=True))
        if link.source is not None:
            state = gradients["initial_state"]
            _send(state[link.enters], link.source, group)
            gradients["initial_state"] = state.clone()
            gradients["initial_state"][link.enters] = 0  # of a state that another process had
        return (None, *(gradients.get(name) for name in passed.names))


def _received(states: Tensor, rows: slice, rank: int, group: Group) -> Tensor:
    """The states with those rows of another rank."""
    states = states.clone(memory_format=torch.contiguous_format)
    rows_of = states[rows]
    message = torch.empty_like(rows_of)
    dist.recv(real(message), group=group, group_src=rank)
    rows_of.copy_(message)
    return states


def _send(states: Tensor, rank: int, group: Group) -> None:
    dist.send(real(states.detach().contiguous()), group=group, group_dst=rank)
