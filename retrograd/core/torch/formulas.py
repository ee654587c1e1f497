"""An op as ordinary PyTorch operations, by its portable formulas: slow, and differentiable to any order.

Taken where no kernel has an answer: in forward mode, under the transforms of `torch.func` that differentiate, and where
a gradient is itself differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_dynamic_layer_stack_depth,
    get_interpreter_stack,
    is_functorch_wrapped_tensor,
)

from ..errors import check_rising
from ..op import Forward, Op
from ..program import Array
from ..xp import differentiable_torch_namespace
from .launch import DTYPES
from .passes import BackwardPass, Options, Shapes, Tensors, no_autocast, shapes_of, spec_of

DIFFERENTIATE = (TransformType.Grad, TransformType.Jvp)


def differentiates(tensors: Tensors) -> bool:
    """Whether a call is under a transform that differentiates, or has tangents."""
    if torch.compiler.is_compiling():
        # Which transforms they are, and which tensors have tangents, cannot be asked there.
        return is_transformed() or forward_ad._current_level >= 0
    if any(interpreter.key() in DIFFERENTIATE for interpreter in get_interpreter_stack() or ()):
        return True
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def is_transformed() -> bool:
    """Whether a call is under any transform of `torch.func`."""
    return get_dynamic_layer_stack_depth() > 0


# The compiler asks once, and has a guard of its own on it. `torch.compiler.assume_constant_result` sets this mark too,
# but imports the compiler.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def results(op: Op, tensors: Tensors, options: Options) -> tuple[Tensor | None, ...]:
    """The op's results, None where they are not there."""
    if torch.compiler.is_compiling():
        shapes = tuple([None if t is None else (tuple([int(size) for size in t.shape]), t.dtype) for t in tensors])
        call = FORWARD[_forward(op, shapes, tuple(options))]
    else:
        call = op.forward(spec_of(op, shapes_of(tensors), options))
    for name, limit in op.indices.items():
        numbers = tensors[op.arguments.index(name)]
        if numbers is not None and _seen(numbers):
            check_rising(op.name, name, numbers.tolist(), limit(call.spec))
    formulas = partial(op.formulas.forward, differentiable_torch_namespace(), call.spec)
    made = _made(formulas, call.outputs, dict(zip(op.arguments, tensors, strict=True)))
    given = {id(t) for t in tensors if t is not None}
    # As from a kernel, a result is never an argument itself.
    made = {name: t.clone() if id(t) in given else t for name, t in made.items()}
    return tuple(made.get(name) for name in op.results)


FORWARD: dict[str, Forward] = {}  # forward passes, for `torch.compile` to read


def _forward(op: Op, shapes: Shapes, options: Options) -> str:
    """The key of a forward pass in FORWARD, with all done that a compiler cannot trace: checks, imports, declarations.

    A compiler takes the key for a constant, and the entry for a global value, whose attributes it can read.
    """
    call = op.forward(spec_of(op, shapes, options))
    _ = op.formulas, call.outputs
    key = repr(call)
    FORWARD[key] = call
    return key


_forward._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _seen(numbers: Tensor) -> bool:
    """Whether numbers can be looked at: without a wait for a device, and not while they stand for others."""
    traced = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(numbers)
    return numbers.device.type == "cpu" and not traced


def gradients(backward: BackwardPass, given: Tensors) -> list[Tensor | None]:
    """The gradients that a backward pass makes, to be differentiated themselves."""
    made = dict(zip(_names(backward), _Gradients.apply(backward, *given), strict=True))
    return [None if name is None else made[name] for name in backward.makes]


def _names(backward: BackwardPass) -> list[str]:
    """What a backward pass makes, each once."""
    return [name for name in dict.fromkeys(backward.makes) if name is not None]


class _Gradients(torch.autograd.Function):
    """A backward pass, by kernels where there are any; its own derivative is that of the formulas."""

    @staticmethod
    def forward(ctx: Any, backward: BackwardPass, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.backward_pass = backward
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        made = dict(zip(backward.makes, backward.run(given), strict=True))
        return tuple(made[name] for name in _names(backward))

    @staticmethod
    def backward(ctx: Any, *came: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, further = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        with torch.enable_grad():
            # Each a tensor of its own: one may have been made from another, through which no gradient is to flow here.
            own = [t.view_as(t) if need else t for t, need in zip(ctx.saved_tensors, needs, strict=True)]
            made = _gradients(ctx.backward_pass, own)
            pairs = [(made[name], g) for name, g in zip(_names(ctx.backward_pass), came, strict=True) if g is not None]
            pairs = [(gradient, g) for gradient, g in pairs if gradient.requires_grad]
            wanted = [t for t, need in zip(own, needs, strict=True) if need]
            if not pairs or not wanted:
                return (None,) * (1 + len(own))
            found = iter(
                torch.autograd.grad(
                    [gradient for gradient, _ in pairs],
                    wanted,
                    [g for _, g in pairs],
                    create_graph=further,
                    allow_unused=True,
                )
            )
        return (None, *(next(found) if need else None for need in needs))


def _gradients(backward: BackwardPass, given: Tensors) -> dict[str, Tensor]:
    """The gradients that a backward pass makes, by name."""
    by_name = {name: t for name, t in zip(backward.names, given, strict=True) if t is not None}
    with no_autocast(backward.device.type):
        by_name |= backward.call.recomputed(differentiable_torch_namespace(), by_name)
    formulas = partial(backward.call.portable, differentiable_torch_namespace())
    return _made(formulas, backward.call.outputs, by_name)


def _made(formulas: Any, outputs: Sequence[Array], given: dict[str, Any]) -> dict[str, Tensor]:
    """The outputs of a pass by name, from the function of its portable path."""
    there = {name: t for name, t in given.items() if t is not None}
    with no_autocast(next(iter(there.values())).device.type):
        made = formulas(there)
    return {array.name: made[array.name].to(DTYPES[array.dtype]) for array in outputs}
