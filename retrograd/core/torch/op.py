"""Turns an `Op` into a PyTorch function, which uses one of three paths.

In eager code it launches kernels directly, with the least host time. Under tracing it calls the registered operators
(`operator`), and under a transform that differentiates, the portable formulas (`formulas`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..op import Function, Op
from ..spec import autocast_ranks
from . import formulas
from .arguments import check_arguments, in_batches, resolved, without_gaps
from .autocast import autocasts_anywhere, cast
from .context import Context, Results
from .dtensor import is_distributed, on_locals
from .launch import launches_directly
from .operator import Operators, register, unregistered
from .passes import Options, Prepared, Tensors, prepared_call, run_forward, whole

# Of arrays and options by name, in the op's order, and a context; a result is None where it is absent.
Call = Callable[..., Results]


@cache
def bind(op: Op) -> Call:
    """The function from arrays and options, two dicts by name in the op's order, to the op's results.

    This registers the op's operators with PyTorch, under the op's name.
    """
    return _bound(op, operators_of(op))


@cache
def operators_of(op: Op) -> Operators:
    """The op's operators, registered with PyTorch once."""
    return register(op)


def bind_unregistered(op: Op) -> Call:
    """As `bind`, for a variant of an op, without operators: it takes plain tensors, outside of tracing."""
    return _bound(op, unregistered(op))


def by_kernels(op: Op, tensors: Tensors, options: Options) -> tuple[Tensor, ...] | None:
    """The results of an op that is nothing but kernels, such as a step that overwrites a state.

    None where no kernel takes the call, where a gradient would be recorded, and where kernels cannot be launched
    directly.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return None
    if not launches_directly(tensors):
        return None
    prepared = prepared_call(op, tensors, options)
    if not prepared.has_kernels:
        return None
    if not prepared.started:
        prepared.start()
    return tuple(found for found in prepared.run(tensors)[: len(op.results)] if found is not None)


def bind_kernels(function: Function) -> Callable[[dict[str, Any], dict[str, Any]], tuple[Tensor, ...] | None]:
    """`by_kernels` for `function.kernels`, from arrays and options by name in that op's order."""
    op = function.kernels
    assert op is not None
    return lambda arrays, settings: by_kernels(op, tuple(arrays.values()), tuple(settings.values()))


def _bound(op: Op, operators: Operators) -> Call:
    direct = _direct(op, operators)
    count = len(op.results)
    numbers = [place for place, name in enumerate(op.arguments) if name in op.indices]
    ranks = autocast_ranks(op.call)

    def call(arrays: dict[str, Any], settings: dict[str, Any], context: Context | None = None) -> Results:
        if ranks and autocasts_anywhere():
            arrays = cast(arrays, ranks)
        if context is not None:
            return context.call(op, call, arrays, settings)
        tensors: Tensors = tuple(arrays.values())
        options: Options = tuple(settings.values())
        for place in numbers:  # copying a few numbers is faster than reading them by strides
            if tensors[place] is not None:
                tensors = (*tensors[:place], without_gaps(tensors[place]), *tensors[place + 1 :])
        if launches_directly(tensors):
            if torch.is_grad_enabled():
                return direct(*tensors, options)
            return tuple(run_forward(op, tensors, options)[1][:count])
        if is_distributed(tensors):
            return on_locals(op, call, arrays, settings)
        check_arguments(op, tensors, options)
        if formulas.differentiates(tensors):
            return formulas.results(op, tensors, options)
        return tuple(operators.forward(*tensors, *options)[:count])

    return call


def _direct(op: Op, operators: Operators) -> Callable[..., Results]:
    """The direct path: launches kernels without PyTorch's dispatcher."""
    count = len(op.results)
    arguments = len(op.arguments)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Results:
            tensors = inputs[:arguments]
            prepared = prepared_call(op, tensors, inputs[arguments])
            if not prepared.started:
                needs = ctx.needs_input_grad[:arguments]
                prepared.start(prepared.backward(needs) if any(needs) else None)
            outputs = prepared.run(tensors)
            ctx.prepared = prepared
            ctx.save_for_backward(*prepared.saved((*tensors, *outputs)))
            ctx.set_materialize_grads(False)
            return tuple(outputs[:count])

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            prepared, incoming = incoming_of(ctx.prepared, gradients)
            inputs, needs = (*incoming, *ctx.saved_tensors), ctx.needs_input_grad[:arguments]
            if kernels_only(incoming):
                return (*prepared.backward(needs).run(inputs), None)
            return (*transformed(operators, prepared, needs, inputs), None)

    # Function.apply without its check for function transforms: `launches_directly` has already excluded them.
    apply: Callable[..., Results] = super(torch.autograd.Function, Direct).apply
    return apply


def incoming_of(prepared: Prepared, gradients: Tensors) -> tuple[Prepared, list[Tensor | None]]:
    """The prepared call whose backward pass reads these gradients of results, and what it reads of them."""
    if any(gradients[place] is not None for place in prepared.unread):
        prepared = whole(prepared)
    named = zip(prepared.op.results, gradients, strict=True)
    return prepared, [prepared.zeros(name) if g is None else resolved(g) for name, g in named]


def kernels_only(incoming: Tensors) -> bool:
    """Whether a backward pass may launch its kernels itself: nothing differentiates it, and it has no batches."""
    return not (torch.is_grad_enabled() or in_batches(incoming))


def transformed(
    operators: Operators, prepared: Prepared, needs: tuple[bool, ...], inputs: Tensors
) -> list[Tensor | None]:
    """The gradients of a backward pass where `kernels_only` is False."""
    backward = prepared.backward(needs)
    if torch.is_grad_enabled():
        return formulas.gradients(backward, inputs)
    by_name = dict(zip(backward.names, inputs, strict=True))
    return operators.backward(prepared.params, prepared.options, needs, by_name)
