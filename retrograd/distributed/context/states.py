"""Recurrences: the state after a process's steps is sent to the next one, and its gradient back.

Heads, or channels, do not see one another. So they are computed in parts: while a process computes one of them, the
next process has the state that the part before it ended with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.errors import bad_shape
from retrograd.core.op import Op
from retrograd.core.spec import BATCH, arguments
from retrograd.core.torch.context import Results
from retrograd.core.torch.dtensor import letters_of
from retrograd.core.torch.launch import DTYPES
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.core.tree import tree_sum

from .collectives import Group, gathered
from .layout import Layout

if TYPE_CHECKING:
    from .parallel import ContextParallel

PARTS = 8


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
    computed from the bits that one process would have. Parts of heads that share an array would add up its gradient in
    another order than one process does: where that order is promised, there is one part.
    """
    layout = context.layout
    link = link_of(layout, reverse=bool(settings.get("reverse")))
    device = next(iter(arrays.values())).device
    local = dict(arrays)
    if layout.bounds is not None:
        local["cu_seqlens"] = context.boundaries(device)
    local["initial_state"] = own_rows(layout, op, arrays)
    always = {**settings, "return_final_state": True}
    options = tuple(always.values())
    state = spec_of(op, shapes_of(tuple(local.values())), options)["final_state"]
    assert state is not None
    dtype = DTYPES[state.dtype]
    if local["initial_state"] is not None:
        local["initial_state"] = local["initial_state"].to(dtype)
    elif link.source is not None:
        local["initial_state"] = torch.zeros(state.shape, dtype=dtype, device=device)
    spec = spec_of(op, shapes_of(tuple(local.values())), options)
    divided = division(spec, local, op.results, exact=context.order == "global")
    passed = Passed(run, tuple(local), op.results, always, link, divided, context.group)
    y, final = _PassedOn.apply(passed, *local.values())
    if not settings["return_final_state"]:
        return y, None
    return y, final_states(layout, context.group, final, bool(settings.get("reverse")))


class Division(NamedTuple):
    """How a call is divided into parts of its heads.

    Attributes:
        parts: how many.
        axes: array or result -> its axis of heads; None for what all heads share.
    """

    parts: int
    axes: Mapping[str, int | None]

    def part(self, number: int, arrays: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """The arrays of a part."""
        return {name: self._of(name, array, number) for name, array in arrays.items()}

    def _of(self, name: str, array: Tensor | None, number: int) -> Tensor | None:
        axis = self.axes.get(name)
        return array if array is None or axis is None else array.chunk(self.parts, axis)[number]

    def whole(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """An array of its parts, or the sum of the parts' gradients of what all share."""
        if self.parts == 1:
            return parts[0]
        if (axis := self.axes[name]) is not None:
            return torch.cat(list(parts), axis)
        wide = torch.promote_types(parts[0].dtype, torch.float32)
        return tree_sum([part.to(wide) for part in parts], torch.add).to(parts[0].dtype)


def division(spec: Any, arrays: Mapping[str, Tensor | None], results: Sequence[str], exact: bool) -> Division:
    """As many parts, up to `PARTS`, as divide every axis of heads; `exact` allows no array that parts share."""
    (letter,) = (letter for letter in spec.independent if letter != BATCH)
    present = [name for name, array in arrays.items() if array is not None]
    letters = {name: letters_of(spec, name) for name in (*present, *results)}
    axes = {name: own.index(letter) if letter in own else None for name, own in letters.items()}
    shared = any(axes[name] is None and arguments(type(spec))[name].differentiable for name in present)
    sizes = [spec[name].shape[axis] for name, axis in axes.items() if axis is not None]
    fitting = (count for count in range(PARTS, 1, -1) if all(size % count == 0 for size in sizes))
    return Division(1 if exact and shared else next(fitting, 1), axes)


def link_of(layout: Layout, reverse: bool = False) -> Link:
    """The neighbours of a rank in the direction of a scan."""
    before = layout.rank - 1 if layout.crosses(layout.rank) else None
    after = layout.rank + 1 if layout.crosses(layout.rank + 1) else None
    first, last = slice(None), slice(None)
    if layout.bounds is not None:
        count = len(layout.cu_seqlens) - 1
        first, last = slice(0, 1), slice(count - 1, count)
    return Link(after, before, last, first) if reverse else Link(before, after, first, last)


def own_rows(layout: Layout, op: Op, arrays: dict[str, Any]) -> Tensor | None:
    """The initial states of the sequences that this rank has pieces of, of those of all sequences."""
    initial: Tensor | None = arrays["initial_state"]
    if initial is None or layout.bounds is None:
        return initial
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
    """What a call needs beside its arrays: the names of arrays and results, and how they are passed on."""

    run: Callable[..., Results]
    names: tuple[str, ...]
    results: tuple[str, ...]
    settings: dict[str, Any]
    link: Link
    division: Division
    group: Group


class Graph(NamedTuple):
    """A part's arrays that need a gradient, and its results."""

    wanted: dict[str, Tensor]
    results: tuple[Tensor, ...]


class _PassedOn(torch.autograd.Function):
    """The op between two messages, in both directions; the op's own graph is kept in between."""

    @staticmethod
    def forward(ctx: Any, passed: Passed, *tensors: Tensor | None) -> Results:
        link, group, record = passed.link, passed.group, any(ctx.needs_input_grad)
        needs = dict(zip(passed.names, ctx.needs_input_grad[1:], strict=True))
        needs["initial_state"] |= record and link.source is not None
        whole = {n: None if t is None else t.detach() for n, t in zip(passed.names, tensors, strict=True)}
        graphs: list[Graph] = []
        for number in range(passed.division.parts):
            arrays = {n: None if t is None else t.detach() for n, t in passed.division.part(number, whole).items()}
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
            graphs.append(Graph(wanted, (y, final)))
        if record:
            ctx.passed, ctx.graphs = passed, graphs
        parts = zip(*(graph.results for graph in graphs), strict=True)
        return tuple(
            passed.division.whole(name, [part.detach() for part in own])
            for name, own in zip(passed.results, parts, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.graphs is None:
            raise RuntimeError("a backward pass over a context's border was run before, expected only one")
        passed, graphs = ctx.passed, ctx.graphs
        ctx.graphs = None
        link, division, group = passed.link, passed.division, passed.group
        found: dict[str, list[Tensor]] = {name: [] for name in graphs[0].wanted}
        for number, graph in enumerate(graphs):
            incoming = division.part(number, dict(zip(passed.results, (dy, dfinal), strict=True)))
            of_y, of_final = incoming.values()
            if link.target is not None:
                of_final = _received(of_final, link.leaves, link.target, group)
            gradients = torch.autograd.grad(graph.results, list(graph.wanted.values()), (of_y, of_final))
            own = dict(zip(graph.wanted, gradients, strict=True))
            if link.source is not None:
                state = own["initial_state"]
                _send(state[link.enters], link.source, group)
                own["initial_state"] = state.clone()
                own["initial_state"][link.enters] = 0  # of a state that another process had
            for name, gradient in own.items():
                found[name].append(gradient)
        gradients_of = {name: division.whole(name, parts) for name, parts in found.items()}
        return (None, *(gradients_of.get(name) for name in passed.names))


def _received(states: Tensor, rows: slice, rank: int, group: Group) -> Tensor:
    """The states with those rows of another rank."""
    states = states.clone(memory_format=torch.contiguous_format)
    rows_of = states[rows]
    message = torch.empty_like(rows_of)
    dist.recv(torch.view_as_real(message) if message.is_complex() else message, group=group, group_src=rank)
    rows_of.copy_(message)
    return states


def _send(states: Tensor, rank: int, group: Group) -> None:
    message = states.detach().contiguous()
    dist.send(torch.view_as_real(message) if message.is_complex() else message, group=group, group_dst=rank)
