"""Recurrences: the state after a process's steps is sent to the next one, and its gradient back."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.errors import bad_shape
from retrograd.core.op import Op
from retrograd.core.torch.context import Results
from retrograd.core.torch.launch import DTYPES
from retrograd.core.torch.passes import Options, Shapes, shapes_of, spec_of
from retrograd.distributed.exchange import all_gather

from .collectives import Group, gathered, real
from .layout import Layout
from .reach import End, Reach, end_of, reach_of

if TYPE_CHECKING:
    from .parallel import ContextParallel


INEXACT = ("linear_scan",)  # ops whose parts have not the bits of the whole


class Link(NamedTuple):
    """From whom a process's first state comes, and to whom its last one goes; None where no sequence crosses.

    Attributes:
        source, target: ranks of the group.
        entry, exit: the steps of the sequences that cross.
        enters, leaves: the rows of the states that cross.
    """

    source: int | None
    target: int | None
    entry: End | None
    exit: End | None
    enters: slice
    leaves: slice


def recurrence(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """A recurrence over the steps of all processes.

    Where the states at all borders come of few steps before them, all processes compute at once: each first computes
    the state that it sends, from these few steps. Then it compares it with the one that it has from all its steps. If
    one process finds another, or if a state reaches too far, one process after another computes its steps, from the
    state that the one before it has sent. So every step is computed from the bits that one process would have.
    """
    layout, reverse = context.layout, bool(settings.get("reverse"))
    link = link_of(layout, reverse)
    local = of_pieces(context, op, arrays)
    always = {**settings, "return_final_state": True}
    states = _states(op, tuple(shapes_of(tuple(local.values()))), tuple(always.values()))
    device = next(iter(arrays.values())).device
    if local["initial_state"] is not None:
        local["initial_state"] = local["initial_state"].to(states.dtype)
    elif link.source is not None:
        local["initial_state"] = torch.zeros(states.shape, dtype=states.dtype, device=device)
    rows = states.shape[0] if layout.bounds is None else 1
    zeros = torch.zeros(rows, *states.shape[1:], dtype=states.dtype, device=device)
    reach = None
    if any(map(layout.crosses, range(1, layout.world))):
        reach = reach_of(context, op, local, states.axes, always, link)
    exact = layout.exact and op.name not in INEXACT
    rounding = None if exact else 4 * torch.finfo(next(iter(arrays.values())).dtype).eps
    passed = Passed(run, tuple(local), always, states.axes, zeros, link, reach, context.group, rounding)
    y, final = _PassedOn.apply(passed, *local.values())
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


def link_of(layout: Layout, reverse: bool) -> Link:
    """The neighbours of a rank in the direction of a scan."""
    before, after = (layout.crosses(layout.rank + border) for border in (0, 1))
    source, target = (layout.rank - 1 if before else None), (layout.rank + 1 if after else None)
    first, last = slice(None), slice(None)
    if layout.bounds is not None:
        count = len(layout.cu_seqlens) - 1
        first, last = slice(0, 1), slice(count - 1, count)
    pieces = layout.pieces
    start = end_of(pieces[0], border=False) if before else None
    stop = end_of(pieces[-1], border=True) if after else None
    if reverse:
        return Link(target, source, stop, start, last, first)
    return Link(source, target, start, stop, first, last)


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
    """What a call needs beside its arrays.

    Attributes:
        run: the op in one process.
        names: those of the arrays.
        settings: the op's options.
        axes: the axis of time of the arrays that have one.
        zeros: a state as large as those that cross a border.
        link, reach: how states are passed on; no reach where one process after another computes.
        group: the processes.
        rounding: how far apart, beside the largest, equal numbers may be; None if they have equal bits.
    """

    run: Callable[..., Results]
    names: tuple[str, ...]
    settings: dict[str, Any]
    axes: dict[str, int]
    zeros: Tensor
    link: Link
    reach: Reach | None
    group: Group
    rounding: float | None

    def results(self, arrays: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Those for the steps, and the states after them."""
        y, final = self.run(arrays, self.settings)
        assert y is not None
        assert final is not None
        return y, final

    def beside(self, arrays: dict[str, Any], end: End, steps: int, row: slice) -> dict[str, Any]:
        """The arrays of some steps beside a border, of the sequences that cross it."""
        near = {name: end.part(t, self.axes[name], steps) if t is not None and name in self.axes else t
                for name, t in arrays.items()}  # fmt: skip
        initial = arrays["initial_state"]
        return {**near, "cu_seqlens": None, "initial_state": None if initial is None else initial[row]}

    def from_rank(self, rank: int | None, own: Tensor | None) -> Tensor | None:
        """The state of another rank; all send theirs to all, which takes less of the host than messages in pairs."""
        own = self.zeros if own is None else own.contiguous()
        every = own.new_empty(dist.get_world_size(self.group), *own.shape)
        all_gather(real(every), real(own), self.group)
        return None if rank is None else every[rank]

    def all_same(self, early: Tensor | None, found: Tensor | None) -> bool:
        """Whether all processes have found, from all steps, the state that they had from some."""
        if early is None or found is None or not found.numel():
            own = self.zeros.new_ones((), dtype=torch.bool)
        elif self.rounding is None:
            own = (early.contiguous().view(torch.int32) == found.contiguous().view(torch.int32)).all()
        else:
            own = ((early - found).abs() <= self.rounding * found.abs().amax()).all()
        every = own.new_empty(dist.get_world_size(self.group), dtype=torch.uint8)
        all_gather(every, own.view(1).view(torch.uint8), self.group)
        return 0 not in every.tolist()


class _PassedOn(torch.autograd.Function):
    """The op between two messages, in both directions.

    The op's own graph is kept in between. Where saved tensors are not kept, as by `torch.utils.checkpoint`, the inputs
    alone are saved. To look at them computes everything again, messages included, so that all processes do it at the
    same time, before anything else is sent.
    """

    @staticmethod
    def forward(ctx: Any, passed: Passed, *tensors: Tensor | None) -> Results:
        differentiated = any(ctx.needs_input_grad)
        record = differentiated and not _saves_otherwise()
        needs = dict(zip(passed.names, ctx.needs_input_grad[1:], strict=True))
        needs["initial_state"] |= differentiated and passed.link.source is not None
        arrays = {n: None if t is None else t.detach() for n, t in zip(passed.names, tensors, strict=True)}
        steps = _Steps(passed, arrays, needs, record)
        if passed.reach is None or not steps.at_once(passed.reach):
            steps.in_turn()
        if differentiated:
            ctx.passed, ctx.steps, ctx.needs = passed, steps if record else None, needs
            ctx.save_for_backward(*(() if record else steps.arrays.values()))
            ctx.unused = True
        y, final = steps.results
        return y.detach(), final.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.unused:
            raise RuntimeError("a backward pass over a context's border was run before, expected only one")
        passed, steps, saved = ctx.passed, ctx.steps, ctx.saved_tensors
        ctx.unused, ctx.steps = False, None
        if steps is None:
            steps = _Steps(passed, dict(zip(passed.names, saved, strict=True)), ctx.needs, record=True)
            steps.compute(None)
        gradients = None
        if passed.reach is not None:
            gradients = steps.gradients_at_once(passed.reach, dy, dfinal)
        if gradients is None:
            gradients = steps.gradients_in_turn(dy, dfinal)
        if passed.link.source is not None:
            gradients["initial_state"] = gradients["initial_state"].clone()
            gradients["initial_state"][passed.link.enters] = 0  # of a state that another process had
        return (None, *(gradients.get(name) for name in passed.names))


class _Steps:
    """A process's steps: the op's results for them, and their gradients, for what enters and leaves."""

    results: tuple[Tensor, Tensor]

    def __init__(self, passed: Passed, arrays: dict[str, Any], needs: dict[str, bool], record: bool) -> None:
        self.passed, self.arrays, self.needs, self.record = passed, arrays, needs, record
        self.wanted: dict[str, Tensor] = {}
        self.first: tuple[Tensor, tuple[Tensor, Tensor]] | None = None

    def in_turn(self) -> None:
        """Compute the results, after the processes before."""
        link, group = self.passed.link, self.passed.group
        self.compute(None if link.source is None else _received(self.passed.zeros, link.source, group))
        if link.target is not None:
            _send(self.results[1][link.leaves], link.target, group)

    def at_once(self, reach: Reach) -> bool:
        """Compute the results, with all processes at once; returns whether all had the right states."""
        passed, link = self.passed, self.passed.link
        early = None
        if link.exit is not None:
            near = passed.beside(self.arrays, link.exit, reach.state, link.leaves)
            if near["initial_state"] is not None and not link.exit.whole_is(reach.state):
                near["initial_state"] = passed.zeros
            with torch.no_grad():
                early = passed.results(near)[1]
        self.compute(passed.from_rank(link.source, early))
        if self.record and link.entry is not None:
            self.first = self._first_steps(link.entry, reach.gradient)  # while the host would wait
        return passed.all_same(early, self.results[1][link.leaves])

    def gradients_in_turn(self, dy: Tensor, dfinal: Tensor) -> dict[str, Tensor]:
        """The gradients of the arrays, after the processes behind."""
        link, group = self.passed.link, self.passed.group
        left = None if link.target is None else _received(self.passed.zeros, link.target, group)
        gradients = self._gradients(dy, dfinal, left)
        if link.source is not None:
            _send(gradients["initial_state"][link.enters], link.source, group)
        return gradients

    def gradients_at_once(self, reach: Reach, dy: Tensor, dfinal: Tensor) -> dict[str, Tensor] | None:
        """The gradients, with all processes at once; None if not all had the right gradients of states."""
        passed, link = self.passed, self.passed.link
        early = None
        if link.entry is not None:
            state, results = self.first or self._first_steps(link.entry, reach.gradient)
            self.first = None
            of_final = dfinal[link.enters] if link.entry.whole_is(reach.gradient) else passed.zeros
            (early,) = torch.autograd.grad(results, state, (link.entry.part(dy, 1, reach.gradient), of_final))
        left = passed.from_rank(link.target, early)
        gradients = self._gradients(dy, dfinal, left, keep=True)
        found = None if early is None else gradients["initial_state"][link.enters]
        return gradients if passed.all_same(early, found) else None

    def compute(self, entering: Tensor | None) -> None:
        """Compute the results from the state that enters; None where it is among the arrays, or none does."""
        if entering is not None:
            self.arrays["initial_state"] = _with_rows(self.arrays["initial_state"], self.passed.link.enters, entering)
            self.first = None
        self.wanted = {n: t.requires_grad_() for n, t in self.arrays.items() if t is not None and self.needs[n]}
        with torch.set_grad_enabled(self.record):
            self.results = self.passed.results(self.arrays)

    def _first_steps(self, end: End, steps: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The state that entered, and the results of the first steps, of which its gradient comes."""
        near = self.passed.beside(self.arrays, end, steps, self.passed.link.enters)
        state = near["initial_state"] = near["initial_state"].detach().requires_grad_()
        with torch.enable_grad():
            return state, self.passed.results(near)

    def _gradients(self, dy: Tensor, dfinal: Tensor, left: Tensor | None, keep: bool = False) -> dict[str, Tensor]:
        if left is not None:
            dfinal = _with_rows(dfinal, self.passed.link.leaves, left)
        found = torch.autograd.grad(self.results, list(self.wanted.values()), (dy, dfinal), retain_graph=keep)
        return dict(zip(self.wanted, found, strict=True))


def _saves_otherwise() -> bool:
    """Whether saved tensors are not simply kept."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _with_rows(states: Tensor, rows: slice, those: Tensor) -> Tensor:
    """A copy of the states with other rows."""
    states = states.detach().clone(memory_format=torch.contiguous_format)
    states[rows] = those
    return states


def _received(like: Tensor, rank: int, group: Group) -> Tensor:
    message = torch.empty_like(like)
    dist.recv(real(message), group=group, group_src=rank)
    return message


def _send(states: Tensor, rank: int, group: Group) -> None:
    dist.send(real(states.detach().contiguous()), group=group, group_dst=rank)
