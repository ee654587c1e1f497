"""A call whose first arguments lie in one tensor, for which kernels write one gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..op import Op, Stack
from ..spec import autocast_ranks
from .arguments import without_gaps
from .autocast import autocasts_anywhere, cast
from .checks import checker
from .launch import launches_directly
from .op import Call, Results, bind, incoming_of, kernels_only, operators_of, transformed
from .operator import Operators
from .passes import Tensors, prepared_call


def bind_stack(op: Op, stack: Stack) -> Call:
    """The function from arrays and options of the stack's function, two dicts by name, to the op's results.

    Results and gradients have the bits of a call on the tensor's views. Where kernels run in eager code, they write
    the tensor's gradient; elsewhere PyTorch puts it together from the gradients of the views.
    """
    apart = bind(op)
    direct = _direct(op, operators_of(op), stack)
    check = checker(stack.call)
    sources, name_of_whole = stack.sources(op), stack.name
    ranks = autocast_ranks(stack.call)

    def checked(arrays: dict[str, Any], settings: dict[str, Any]) -> Results:
        if autocasts_anywhere():
            arrays = cast(arrays, ranks)
        if torch.compiler.is_compiling():  # no error of an operator reaches a function that is traced
            check(arrays, settings)
            return call(arrays, settings)
        try:
            return call(arrays, settings)
        except Exception:
            check(arrays, settings)  # raises an error that names the function and its arguments
            raise

    def call(arrays: dict[str, Any], settings: dict[str, Any]) -> Results:
        whole = arrays[name_of_whole]
        others = {name: arrays[source] for name, source in sources.items()}
        others |= {name: without_gaps(others[name]) for name in op.indices if others[name] is not None}
        tensors = (whole, *others.values())
        if torch.is_grad_enabled() and whole.requires_grad and launches_directly(tensors):
            return direct(*tensors, tuple(settings.values()))
        parts = dict(zip(stack.arguments, whole.unbind(stack.axis), strict=True))
        return apart(parts | others, settings)

    return checked


def _direct(op: Op, operators: Operators, stack: Stack) -> Callable[..., Results]:
    """The path that launches kernels without PyTorch's dispatcher."""
    count = len(op.results)
    stacked = len(stack.arguments)
    given = len(op.arguments) - stacked + 1

    def needs_of(ctx: Any) -> tuple[bool, ...]:
        first, *rest = ctx.needs_input_grad[:given]
        return (*[first] * stacked, *rest)

    class Stacked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Results:
            tensors: Tensors = (*inputs[0].unbind(stack.axis), *inputs[1:given])
            prepared = prepared_call(op, tensors, inputs[given])
            if not prepared.started:
                needs = needs_of(ctx)
                together = prepared.stacked(needs, stack) if needs[0] else None
                prepared.start(together or (prepared.backward(needs) if any(needs) else None))
            outputs = prepared.run(tensors)
            ctx.prepared = prepared
            # Not its views, which are no nodes of the graph; they come first in what the backward pass reads.
            ctx.save_for_backward(inputs[0], *prepared.saved((*tensors, *outputs))[stacked:])
            ctx.set_materialize_grads(False)
            return tuple(outputs[:count])

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            prepared, incoming = incoming_of(ctx.prepared, gradients)
            whole, *saved = ctx.saved_tensors
            inputs = (*incoming, *whole.unbind(stack.axis), *saved)
            needs = needs_of(ctx)
            first = needs[0]
            if not kernels_only(incoming):
                found = transformed(operators, prepared, needs, inputs)
            elif first and (together := prepared.stacked(needs, stack)):
                return (*together.run(inputs), None)
            else:
                found = prepared.backward(needs).run(inputs)
            parts = [gradient for gradient in found[:stacked] if gradient is not None]
            return (torch.stack(parts, stack.axis) if first else None, *found[stacked:], None)

    # As in `op._direct`.
    apply: Callable[..., Results] = super(torch.autograd.Function, Stacked).apply
    return apply
