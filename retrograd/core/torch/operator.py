"""Registers an `Op` with PyTorch's dispatcher: for torch.compile, dispatch modes, `torch.vmap`, subclasses of Tensor.

An operator returns a fixed number of tensors, so an absent result is an empty tensor. Saved arrays are flattened,
because tracing sets a guard on each size of a tensor, and their sizes are not sizes of the user's tensors. PyTorch lets
an operator return several tensors as a tuple, but a single one only as itself (`_alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..op import Call, Op, differentiable, gradient_names, gradients_of_results, saved_names
from ..spec import autocast_ranks
from .arguments import absent
from .autocast import cast
from .flops import register_flops
from .launch import DTYPES
from .passes import Options, Shapes, backward_pass, run_forward, shapes_of, spec_of, wanted_names

# Rows may be further apart than traced: torch.compile pads matrix products, and would copy a part of one before a call.
TAGS = (torch.Tag.needs_fixed_stride_order,)
AUTOCAST_KEYS = ("AutocastCPU", "AutocastCUDA")
Returned = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Operators:
    """An op's registered operators.

    Attributes:
        forward: from arguments and options, each in order, to results and saved arrays; an absent one is an empty
            tensor.
        backward: (shapes, options, needs, arrays) -> the gradient of each argument that needs one; `arrays` has the
            inputs of the backward pass by name.
    """

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[[Shapes, Options, Sequence[bool], Mapping[str, Tensor | None]], list[Tensor | None]]


def register(op: Op) -> Operators:
    """Register `retrograd::<op>` and `retrograd::<op>_backward`, with shapes and derivative; called once per op."""
    outputs = (*op.results, *op.kept)
    arguments = len(op.arguments)
    tensors = ", ".join(f"Tensor{'?' if place else ''} {name}" for place, name in enumerate(op.arguments))
    options = "".join(f", {kind} {name}" for name, kind in op.options.items())
    returned = ", ".join(["Tensor"] * len(outputs))

    def run(*inputs: Any) -> Returned:
        _, found = run_forward(op, inputs[:arguments], hashable(inputs[arguments:]))
        found = [*found[: len(op.results)], *(None if t is None else t.view(-1) for t in found[len(op.results) :])]
        return _alone([absent(inputs[0]) if t is None else t for t in found])

    def fake(*inputs: Any) -> Returned:
        spec = spec_of(op, shapes_of(inputs[:arguments]), hashable(inputs[arguments:]))
        return _alone(_empty(inputs[0], op.forward(spec), outputs, flat=op.kept))

    # The backward operator takes gradients of results, the saved arguments and outputs, and what describes the call.
    reads = (*gradients_of_results(op), *op.arguments, *outputs)
    read = ", ".join(f"Tensor? {name}" for name in reads)
    shapes = "".join(f", SymInt[]? {name}_shape, ScalarType? {name}_dtype" for name in op.arguments)
    computed = [f"d{name}" for name in op.arguments if name in differentiable(op)]
    gradients = ", ".join(["Tensor"] * len(computed))

    def described_call(description: Sequence[Any]) -> tuple[Shapes, frozenset[str], Options]:
        flat, rest = description[: 2 * arguments], description[2 * arguments :]
        params = tuple([None if flat[i] is None else (tuple(flat[i]), flat[i + 1]) for i in range(0, len(flat), 2)])
        wanted = frozenset([name for name, want in zip(op.arguments, rest[0], strict=True) if want])
        return params, wanted, hashable(rest[1:])

    def run_backward(*inputs: Any) -> Returned:
        params, wanted, options = described_call(inputs[len(reads) :])
        like = next(t for t in inputs if t is not None)
        backward = backward_pass(op, params, like.device, wanted, *options)
        by_name = dict(zip(reads, inputs, strict=False))
        for name, shape in kept_shapes(op, params, *options).items():
            if (kept := by_name[name]) is not None:
                by_name[name] = kept.view(shape)
        results = dict(zip(backward.makes, backward.run([by_name[name] for name in backward.names]), strict=True))
        return _alone([absent(like) if (t := results.get(name)) is None else t for name in computed])

    def fake_backward(*inputs: Any) -> Returned:
        params, wanted, options = described_call(inputs[len(reads) :])
        spec = spec_of(op, params, options)
        names = wanted_names(op, spec, wanted)
        like = next(t for t in inputs if t is not None)
        made = [name if name in names else None for name in computed]
        return _alone(_empty(like, op.backward(spec, wanted), made))

    def gradients_of(
        params: Shapes, options: Options, needs: Sequence[bool], arrays: Mapping[str, Tensor | None]
    ) -> list[Tensor | None]:
        spec = spec_of(op, params, options)
        inputs = op.backward(spec, differentiable(op)).inputs
        tensors = [arrays[name] if name in inputs else None for name in reads]
        flat = [part for param in params for part in (param or (None, None))]
        wanted = [bool(need) and name in differentiable(op) for name, need in zip(op.arguments, needs, strict=True)]
        found = dict(zip(computed, _together(backward_operator(*tensors, *flat, wanted, *options)), strict=True))
        names = gradient_names(op, spec)
        return [found[name] if want else None for name, want in zip(names, wanted, strict=True)]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Returned) -> None:
        tensors = inputs[:arguments]
        ctx.params = shapes_of(tensors)
        ctx.options = hashable(inputs[arguments:])
        saved = saved_names(op, op.backward(spec_of(op, ctx.params, ctx.options), differentiable(op)))
        ctx.names = (*gradients_of_results(op), *saved)
        by_name = dict(zip((*op.arguments, *outputs), (*tensors, *_together(output)), strict=True))
        ctx.save_for_backward(*(by_name[name] for name in saved))

    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        by_name = dict(zip(ctx.names, (*incoming[: len(op.results)], *ctx.saved_tensors), strict=True))
        found = gradients_of(ctx.params, ctx.options, ctx.needs_input_grad[:arguments], by_name)
        return (*found, *(None for _ in ctx.options))

    name = f"retrograd::{op.name}"
    forward_op = torch.library.custom_op(
        name, run, mutates_args=(), schema=f"({tensors}{options}) -> ({returned})", tags=TAGS
    )
    backward_op = torch.library.custom_op(
        f"{name}_backward",
        run_backward,
        mutates_args=(),
        schema=f"({read}{shapes}, bool[] wanted{options}) -> ({gradients})",
        tags=TAGS,
    )
    forward_op.register_fake(fake)
    backward_op.register_fake(fake_backward)
    forward_op.register_autograd(backward, setup_context=setup_context)
    operator = getattr(torch.ops.retrograd, op.name)
    if ranks := autocast_ranks(op.call):
        _register_autocast(op, forward_op, ranks)
    backward_operator = getattr(torch.ops.retrograd, f"{op.name}_backward")

    def flops(*inputs: Any) -> int:
        params = shapes_of(inputs[:arguments])
        count: int = spec_of(op, params, hashable(inputs[arguments:])).flops("fwd")
        return count

    def backward_flops(*inputs: Any) -> int:
        params, _, options = described_call(inputs[len(reads) :])
        count: int = spec_of(op, params, options).flops("bwd")
        return count

    register_flops(operator, flops)
    register_flops(backward_operator, backward_flops)
    return Operators(lambda *inputs: _together(operator(*inputs)), gradients_of)


def _register_autocast(op: Op, operator: Any, ranks: Mapping[str, tuple[int, ...]]) -> None:
    """Cast the operator's arguments under autocast, before autograd records the call."""
    arguments = len(op.arguments)
    for key in AUTOCAST_KEYS:
        excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def run(*inputs: Any, excluded: Any = excluded) -> Returned:
            arrays = cast(dict(zip(op.arguments, inputs, strict=False)), ranks)
            with torch._C._ExcludeDispatchKeyGuard(excluded):
                return getattr(torch.ops.retrograd, op.name)(*arrays.values(), *inputs[arguments:])

        operator._lib.impl(op.name, run, key)  # as `torch.library.register_autocast`, which casts all arguments


def unregistered(op: Op) -> Operators:
    """Stand-ins that raise RuntimeError, for a variant of an op, which has no operators."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError(f"{op.name}: a variant takes plain tensors, outside of tracing and of transforms")

    return Operators(refuse, refuse)


def hashable(options: Options) -> Options:
    """The dispatcher's options, with lists as tuples."""
    return tuple([tuple(option) if isinstance(option, list) else option for option in options])


@lru_cache(maxsize=4096, typed=True)
def kept_shapes(op: Op, params: Shapes, *options: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the saved arrays of a call."""
    outputs = op.forward(spec_of(op, params, options)).outputs
    return {array.name: array.shape for array in outputs if array.name in op.kept}


def _empty(like: Tensor, call: Call, names: Sequence[str | None], flat: Sequence[str] = ()) -> list[Tensor]:
    """Empty tensors with the shapes and dtypes of a call's outputs, for tracing."""
    present = {array.name: array for array in call.outputs}
    shapes = {name: (prod(array.shape),) if name in flat else array.shape for name, array in present.items()}
    return [
        like.new_empty(shapes[name], dtype=DTYPES[present[name].dtype]) if name in present else absent(like)
        for name in names
    ]


def _alone(tensors: Sequence[Tensor]) -> Returned:
    """Tensors as an operator returns them."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _together(returned: Returned) -> tuple[Tensor, ...]:
    """What an operator returned, as a tuple."""
    return (returned,) if isinstance(returned, Tensor) else returned
