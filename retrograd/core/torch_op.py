"""Turns an `Op` into a PyTorch function: launched directly in eager code, a registered operator under tracing.

The direct path spends little of the host's time. The operators `retrograd::<op>` and `retrograd::<op>_backward` compute
the same through PyTorch's dispatcher, for torch.compile, dispatch modes and subclasses of Tensor. An operator returns
a fixed number of tensors, so a result that is not there is an empty tensor there, and None on the direct path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .op import Call, Op, differentiable, gradient_names, gradients_of_results, saved_names
from .torch_arguments import absent, check_arguments, resolved, without_gaps
from .torch_launch import DTYPES, launches_directly
from .torch_pass import Options, Prepared, Shapes, Tensors, backward_pass, run_forward, spec_of, wanted_names

Results = tuple[Tensor | None, ...]  # one for each of the op's results, None where it is not there


def bind(op: Op) -> Callable[[Tensors, Options], Results]:
    """The function from an op's arrays and options, each in the op's order, to its results.

    It registers the op's operators with PyTorch, so it is called once an op.
    """
    direct = _direct(op)
    operator = _register(op)
    count = len(op.results)
    numbers = [place for place, name in enumerate(op.arguments) if name in op.indices]

    def call(tensors: Tensors, options: Options) -> Results:
        for place in numbers:  # a few numbers are sooner copied than reached by strides
            if tensors[place] is not None:
                tensors = (*tensors[:place], without_gaps(tensors[place]), *tensors[place + 1 :])
        if launches_directly(tensors):
            if torch.is_grad_enabled():
                return direct(*tensors, options)
            return tuple(run_forward(op, tensors, options)[1][:count])
        check_arguments(op, tensors, options)
        made: Results = operator(*tensors, *options)[:count]
        return made

    return call


def _direct(op: Op) -> Callable[..., Results]:
    """The direct path: kernels launched without PyTorch's dispatcher."""
    count = len(op.results)
    arguments = len(op.arguments)

    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        prepared: Prepared = ctx.prepared
        came = [
            prepared.zeros(name) if g is None else resolved(g) for name, g in zip(op.results, gradients, strict=True)
        ]
        return (*prepared.backward(ctx.needs_input_grad).run((*came, *ctx.saved_tensors)), None)

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
            if not torch.is_grad_enabled():
                return backward(ctx, *gradients)
            # A second derivative may be taken; cut off from the graph it would be silently zero.
            with torch.no_grad():
                made = backward(ctx, *gradients)
            return tuple(None if g is None else _Once.apply(g, torch.empty(0, requires_grad=True)) for g in made)

    # Function.apply without its look for function transforms: `launches_directly` has made sure that there are none.
    apply: Callable[..., Results] = super(torch.autograd.Function, Direct).apply
    return apply


class _Once(torch.autograd.Function):
    """A gradient that refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError("retrograd has no second derivatives: double backward through one of its ops")


def _register(op: Op) -> Callable[..., tuple[Tensor, ...]]:
    """Register `retrograd::<op>` and `retrograd::<op>_backward`, with shapes and derivative."""
    outputs = (*op.results, *op.kept)
    arguments = len(op.arguments)
    tensors = ", ".join(f"Tensor{'?' if place else ''} {name}" for place, name in enumerate(op.arguments))
    options = "".join(f", {kind} {name}" for name, kind in op.options.items())
    returned = ", ".join(["Tensor"] * len(outputs))

    def run(*given: Any) -> tuple[Tensor, ...]:
        _, made = run_forward(op, given[:arguments], given[arguments:])
        return tuple(absent(given[0]) if t is None else t for t in made)

    def fake(*given: Any) -> tuple[Tensor, ...]:
        spec = spec_of(op, [None if t is None else (t.shape, t.dtype) for t in given[:arguments]], given[arguments:])
        return _empty(given[0], op.forward(spec), outputs)

    # A backward call: gradients of the results, arguments and outputs where they are saved, and what the spec says.
    reads = (*gradients_of_results(op), *op.arguments, *outputs)
    read = ", ".join(f"Tensor? {name}" for name in reads)
    shapes = "".join(f", SymInt[]? {name}_shape, ScalarType? {name}_dtype" for name in op.arguments)
    made = [f"d{name}" for name in op.arguments if name not in op.indices]
    gradients = ", ".join(["Tensor"] * len(made))

    def told_of(given: Sequence[Any]) -> tuple[Shapes, frozenset[str], Options]:
        told, rest = given[: 2 * arguments], given[2 * arguments :]
        params = tuple([None if told[i] is None else (tuple(told[i]), told[i + 1]) for i in range(0, len(told), 2)])
        wanted = frozenset([name for name, want in zip(op.arguments, rest[0], strict=True) if want])
        return params, wanted, rest[1:]

    def run_backward(*given: Any) -> tuple[Tensor, ...]:
        params, wanted, options = told_of(given[len(reads) :])
        like = next(t for t in given if t is not None)
        backward = backward_pass(op, params, like.device, wanted, *options)
        by_name = dict(zip(reads, given, strict=False))
        results = dict(zip(backward.makes, backward.run([by_name[name] for name in backward.names]), strict=True))
        return tuple(absent(like) if (t := results.get(name)) is None else t for name in made)

    def fake_backward(*given: Any) -> tuple[Tensor, ...]:
        params, wanted, options = told_of(given[len(reads) :])
        spec = spec_of(op, params, options)
        names = wanted_names(op, spec, wanted)
        like = next(t for t in given if t is not None)
        return _empty(like, op.backward(spec, wanted), [name if name in names else None for name in made])

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        given = inputs[:arguments]
        ctx.told = [part for t in given for part in ((None, None) if t is None else (t.shape, t.dtype))]
        ctx.options = inputs[arguments:]
        params = [None if t is None else (t.shape, t.dtype) for t in given]
        spec = spec_of(op, params, ctx.options)
        reads = op.backward(spec, differentiable(op))
        saved = saved_names(op, reads)
        ctx.names = (*gradients_of_results(op), *saved)
        ctx.reads = reads.inputs
        ctx.gradients = gradient_names(op, spec)
        by_name = dict(zip((*op.arguments, *outputs), (*given, *output), strict=True))
        ctx.save_for_backward(*(by_name[name] for name in saved))

    def backward(ctx: Any, *came: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[:arguments]
        by_name = dict(zip(ctx.names, (*came[: len(op.results)], *ctx.saved_tensors), strict=True))
        wanted = [bool(need) and name not in op.indices for name, need in zip(op.arguments, needs, strict=True)]
        given = [by_name[name] if name in ctx.reads else None for name in reads]
        results = backward_operator(*given, *ctx.told, wanted, *ctx.options)
        found: Mapping[str, Tensor] = dict(zip(made, results, strict=True))
        return (
            *(found[name] if want else None for name, want in zip(ctx.gradients, wanted, strict=True)),
            *(None for _ in ctx.options),
        )

    name = f"retrograd::{op.name}"
    forward_op = torch.library.custom_op(name, run, mutates_args=(), schema=f"({tensors}{options}) -> ({returned})")
    backward_op = torch.library.custom_op(
        f"{name}_backward",
        run_backward,
        mutates_args=(),
        schema=f"({read}{shapes}, bool[] wanted{options}) -> ({gradients})",
    )
    forward_op.register_fake(fake)
    backward_op.register_fake(fake_backward)
    forward_op.register_autograd(backward, setup_context=setup_context)
    backward_operator = getattr(torch.ops.retrograd, f"{op.name}_backward")
    operator: Callable[..., tuple[Tensor, ...]] = getattr(torch.ops.retrograd, op.name)
    return operator


def _empty(like: Tensor, call: Call, names: Sequence[str | None]) -> tuple[Tensor, ...]:
    there = {array.name: array for array in call.outputs}
    return tuple(
        like.new_empty(there[name].shape, dtype=DTYPES[there[name].dtype]) if name in there else absent(like)
        for name in names
    )
