"""A recurrence between two messages: a process's steps, from the state that enters to the one that leaves, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.torch.context import Results

from .collectives import Group, real
from .passed import Passed, twice
from .reach import Reach, Reaches
from .summaries import passed_by_all


def passed_on(passed: Passed, reaches: Reaches | None, arrays: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The results for a process's steps, and the states after them.

    `reaches` are None where no sequence crosses a border.
    """
    found: tuple[Tensor, Tensor] = _PassedOn.apply(passed, reaches, *arrays.values())
    return found


class _PassedOn(torch.autograd.Function):
    """The op between two messages, in both directions.

    The op's own graph is kept in between. Where saved tensors are not kept, as by `torch.utils.checkpoint`, the inputs
    alone are saved. To look at them computes everything again, messages included, so that all processes do it at the
    same time, before anything else is sent.
    """

    @staticmethod
    def forward(ctx: Any, passed: Passed, reaches: Reaches | None, *tensors: Tensor | None) -> Results:
        differentiated = any(ctx.needs_input_grad)
        record = differentiated and not _saves_otherwise()
        needs = dict(zip(passed.names, ctx.needs_input_grad[2:], strict=True))
        needs["initial_state"] |= differentiated and passed.link.source is not None
        arrays = {n: None if t is None else t.detach() for n, t in zip(passed.names, tensors, strict=True)}
        steps = _Steps(passed, arrays, needs, record)
        reach = None if reaches is None else steps.results_at_once(reaches)
        if reach is None:
            steps.by_summaries() if passed.summed else steps.in_turn()
        if differentiated:
            ctx.reach = reach
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
        if ctx.reach is not None:
            gradients = steps.gradients_at_once(ctx.reach, dy, dfinal)
            if gradients is None:
                passed.forget()
        if gradients is None:
            otherwise = steps.gradients_by_summaries if passed.summed else steps.gradients_in_turn
            gradients = otherwise(dy, dfinal)
        if passed.link.source is not None:
            gradients["initial_state"] = gradients["initial_state"].clone()
            gradients["initial_state"][passed.link.enters] = 0  # of a state that another process had
        return (None, None, *(gradients.get(name) for name in passed.names))


class _Steps:
    """A process's steps: the op's results for them, and their gradients, for what enters and leaves."""

    results: tuple[Tensor, Tensor]

    def __init__(self, passed: Passed, arrays: dict[str, Any], needs: dict[str, bool], record: bool) -> None:
        self.passed, self.arrays, self.needs, self.record = passed, arrays, needs, record
        self.wanted: dict[str, Tensor] = {}

    def in_turn(self) -> None:
        """Compute the results, after the processes before."""
        link, group = self.passed.link, self.passed.group
        self.compute(None if link.source is None else _received(self.passed, link.source))
        if link.target is not None:
            _send(self.results[1][link.leaves], link.target, group)

    def results_at_once(self, reaches: Reaches) -> Reach | None:
        """Compute the results, with all processes at once; the reach that was enough for all, if one was."""
        enough = next(filter(self._from_reach, reaches), None)
        reaches.keep(enough)
        return enough

    def _from_reach(self, reach: Reach) -> bool:
        """Compute the results from the states that few steps make; returns whether all processes know theirs."""
        passed, link = self.passed, self.passed.link
        leaving = None
        if link.exit is not None:
            starts = passed.starts(link.exit, reach.state, self.arrays["initial_state"], link.leaves)
            with torch.no_grad():
                leaving = passed.results(passed.beside(self.arrays, link.exit, reach.state, starts))[1]
        entering, known = passed.told(leaving, link.source)
        self.compute(entering)
        return all(known.read())  # while the steps are being computed

    def gradients_in_turn(self, dy: Tensor, dfinal: Tensor) -> dict[str, Tensor]:
        """The gradients of the arrays, after the processes behind."""
        link, group = self.passed.link, self.passed.group
        left = None if link.target is None else _received(self.passed, link.target)
        gradients = self._gradients(dy, dfinal, left)
        if link.source is not None:
            _send(gradients["initial_state"][link.enters], link.source, group)
        return gradients

    def gradients_at_once(self, reach: Reach, dy: Tensor, dfinal: Tensor) -> dict[str, Tensor] | None:
        """The gradients, with all processes at once; None if not all had the right gradients of states."""
        passed, link = self.passed, self.passed.link
        entered = None
        if link.entry is not None:
            near = passed.beside(self.arrays, link.entry, reach.gradient, passed.extremes)
            dnear = twice(link.entry.part(dy, 1, reach.gradient))
            dfinals = passed.starts(link.entry, reach.gradient, dfinal, link.enters)
            entered = passed.gradient_of_start(near, dnear, dfinals)
        left, known = passed.told(entered, link.target)
        gradients = self._gradients(dy, dfinal, left, keep=True)
        return gradients if all(known.read()) else None

    def by_summaries(self) -> None:
        """Compute the results, with all processes at once, from the states that their summaries make."""
        passed, link = self.passed, self.passed.link
        own = decay = passed.zeros()
        if (end := link.exit) is not None:
            start = passed.first(self.arrays["initial_state"], link.leaves) if end.whole else own
            steps = passed.beside(self.arrays, end, end.length, start)
            with torch.no_grad():
                y, own = passed.results(steps)
            if not end.whole:
                decay = passed.gradient_of_start(steps, torch.zeros_like(y), torch.ones_like(own)).conj()
        self.compute(passed_by_all(own, decay, link.source, passed.group))

    def gradients_by_summaries(self, dy: Tensor, dfinal: Tensor) -> dict[str, Tensor]:
        """The gradients of the arrays, with all processes at once, from the gradients that their summaries make."""
        passed, link = self.passed, self.passed.link
        own = decay = passed.zeros()
        if (end := link.entry) is not None:
            steps = passed.beside(self.arrays, end, end.length, own)
            dsteps = end.part(dy, 1, end.length)
            if not end.whole:
                decay = passed.gradient_of_start(steps, torch.zeros_like(dsteps), torch.ones_like(own))
            own = passed.gradient_of_start(steps, dsteps, passed.first(dfinal, link.enters) if end.whole else own)
        return self._gradients(dy, dfinal, passed_by_all(own, decay, link.target, passed.group))

    def compute(self, entering: Tensor | None) -> None:
        """Compute the results from the state that enters; None where it is among the arrays, or none does."""
        if entering is not None:
            self.arrays["initial_state"] = _with_rows(self.arrays["initial_state"], self.passed.link.enters, entering)
        self.wanted = {n: t.requires_grad_() for n, t in self.arrays.items() if t is not None and self.needs[n]}
        with torch.set_grad_enabled(self.record):
            self.results = self.passed.results(self.arrays)

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
    if len(states) == len(those):
        return those
    states = states.detach().clone(memory_format=torch.contiguous_format)
    states[rows] = those
    return states


def _received(passed: Passed, rank: int) -> Tensor:
    message = torch.empty_like(passed.extremes[: passed.rows])
    dist.recv(real(message), group=passed.group, group_src=rank)
    return message


def _send(states: Tensor, rank: int, group: Group) -> None:
    dist.send(real(states.detach().contiguous()), group=group, group_dst=rank)
