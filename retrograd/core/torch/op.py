"""Turns an `Op` into a PyTorch function, which takes one of three ways.

In eager code it launches kernels directly, which costs the host least. Under tracing it goes through the registered
operators (`torch_operator`), where a transform differentiates it through the formulas (`torch_formulas`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..op import Op
from . import formulas
from .arguments import check_arguments, in_batches, resolved, without_gaps
from .launch import launches_directly
from .operator import Operators, register, unregistered
from .passes import Options, Prepared, Tensors, run_forward, whole

Results = tuple[Tensor | None, ...]  # one for each of the op's results, None where it is not there


Call = Callable[[dict[str, Any], dict[str, Any]], Results]  # from arrays and options, each in the op's order


@cache
def bind(op: Op) -> Call:
    """The function from an op's arrays and options, by name and each in the op's order, to its results.

    It registers the op's operators with PyTorch, whose names are the op's.
    """
    return _bound(op, register(op))


def bind_unregistered(op: Op) -> Call:
    """The same for a variant of an op, whose calls are on plain tensors, outside of tracing."""
    return _bound(op, unregistered(op))


def _bound(op: Op, operators: Operators) -> Call:
    direct = _direct(op, operators)
    count = len(op.results)
    numbers = [place for place, name in enumerate(op.arguments) if name in op.indices]

    def call(arrays: dict[str, Any], settings: dict[str, Any]) -> Results:
        tensors: Tensors = tuple(arrays.values())
        options: Options = tuple(settings.values())
        for place in numbers:  # a few numbers are sooner copied than reached by strides
            if tensors[place] is not None:
                tensors = (*tensors[:place], without_gaps(tensors[place]), *tensors[place + 1 :])
        if launches_directly(tensors):
            if torch.is_grad_enabled():
                return direct(*tensors, options)
            return tuple(run_forward(op, tensors, options)[1][:count])
        check_arguments(op, tensors, options)
        if formulas.differentiates(tensors):
            return formulas.results(op, tensors, options)
        return tuple(operators.forward(*tensors, *options)[:count])

    return call


def _direct(op: Op, operators: Operators) -> Callable[..., Results]:
    """The direct path: kernels launched without PyTorch's dispatcher."""
    count = len(op.results)
    arguments = len(op.arguments)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Results:
            tensors = given[:arguments]
            prepared, made = run_forward(op, tensors, given[arguments])
            ctx.prepared = prepared
            there = (*tensors, *made)
            ctx.save_for_backward(*prepared.saved(there))
            ctx.set_materialize_grads(False)
            return tuple(made[:count])

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            prepared: Prepared = ctx.prepared
            if any(gradients[place] is not None for place in prepared.unread):
                prepared = whole(prepared)
            came = [
                prepared.zeros(name) if g is None else resolved(g)
                for name, g in zip(op.results, gradients, strict=True)
            ]
            given, needs = (*came, *ctx.saved_tensors), ctx.needs_input_grad[:arguments]
            if torch.is_grad_enabled():
                found = formulas.gradients(prepared.backward(needs), given)
            elif in_batches(came):
                by_name = dict(zip(prepared.backward(needs).names, given, strict=True))
                found = operators.backward(prepared.params, prepared.options, needs, by_name)
            else:
                found = prepared.backward(needs).run(given)
            return (*found, None)

    # Function.apply without its look for function transforms: `launches_directly` has made sure that there are none.
    apply: Callable[..., Results] = super(torch.autograd.Function, Direct).apply
    return apply
