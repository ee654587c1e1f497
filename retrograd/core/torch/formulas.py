"""An op in ordinary PyTorch operations, by its portable formulas: slow, and differentiable to any order.

Used where kernels cannot be: in forward mode, under the differentiating transforms of `torch.func`, and where a
gradient is itself differentiated.
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

from ..errors import check_nondecreasing
from ..op import Forward, Op
from ..program import Array
from .autocast import no_autocast
from .launch import DTYPES
from .passes import BackwardPass, Options, Shapes, Tensors, shapes_of, spec_of
from .xp import differentiable_torch_namespace

DIFFERENTIATE = (TransformType.Grad, TransformType.Jvp)


def differentiates(tensors: Tensors) -> bool:
    """Whether a call is under a differentiating transform, or has tangents."""
    if torch.compiler.is_compiling():
        # While compiling, the kinds of active transforms and the tensors with tangents cannot be queried.
        return is_transformed() or forward_ad._current_level >= 0
    if any(interpreter.key() in DIFFERENTIATE for interpreter in get_interpreter_stack() or ()):
        return True
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def is_transformed() -> bool:
    """Whether a call is under any transform of `torch.func`."""
    return get_dynamic_layer_stack_depth() > 0


# The compiler calls the function once and has its own guard on the result. `torch.compiler.assume_constant_result` sets
# this mark too, but imports the compiler.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def results(op: Op, tensors: Tensors, options: Options) -> tuple[Tensor | None, ...]:
    """The op's results, None where they are absent."""
    if torch.compiler.is_compiling():
        shapes = tuple([None if t is None else (tuple([int(size) for size in t.shape]), t.dtype) for t in tensors])
        call = FORWARD[_forward(op, shapes, tuple(options))]
    else:
        call = op.forward(spec_of(op, shapes_of(tensors), options))
    for name, limit in op.indices.items():
        numbers = tensors[op.arguments.index(name)]
        if numbers is not None and readable(numbers):
            check_nondecreasing(op.name, name, numbers.tolist(), limit(call.spec))
    formulas = partial(op.formulas.forward, differentiable_torch_namespace(), call.spec)
    outputs = _outputs(formulas, call.outputs, dict(zip(op.arguments, tensors, strict=True)))
    ids = {id(t) for t in tensors if t is not None}
    # As with kernels, a result is never an argument itself.
    outputs = {name: t.clone() if id(t) in ids else t for name, t in outputs.items()}
    return tuple(outputs.get(name) for name in op.results)


FORWARD: dict[str, Forward] = {}  # forward passes, for `torch.compile` to read


def _forward(op: Op, shapes: Shapes, options: Options) -> str:
    """The key of a forward pass in FORWARD, with all done that a compiler cannot trace: checks, imports, declarations.

    To the compiler the key is a constant, and the entry a global value, whose attributes it can read.
    """
    call = op.forward(spec_of(op, shapes, options))
    _ = op.formulas, call.outputs
    key = repr(call)
    FORWARD[key] = call
    return key


_forward._dynamo_marked_constant = True  # type: ignore[attr-defined]


def readable(numbers: Tensor) -> bool:
    """Whether the values can be read without waiting for a device, and are neither traced nor wrapped."""
    traced = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(numbers)
    return numbers.device.type == "cpu" and not traced


def gradients(backward: BackwardPass, inputs: Tensors) -> list[Tensor | None]:
    """The gradients that a backward pass computes, in a form that can be differentiated."""
    found = dict(zip(_names(backward), _Gradients.apply(backward, *inputs), strict=True))
    return [None if name is None else found[name] for name in backward.makes]


def _names(backward: BackwardPass) -> list[str]:
    """The names of the gradients that a backward pass computes, each once."""
    return [name for name in dict.fromkeys(backward.makes) if name is not None]


class _Gradients(torch.autograd.Function):
    """A backward pass, by kernels where there are any; its derivative is that of the portable formulas."""

    @staticmethod
    def forward(ctx: Any, backward: BackwardPass, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.backward_pass = backward
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        found = dict(zip(backward.makes, backward.run(inputs), strict=True))
        return tuple(found[name] for name in _names(backward))

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, further = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        with torch.enable_grad():
            # Views, because one tensor may have been computed from another, and no gradient may flow through that here.
            own = [t.view_as(t) if need else t for t, need in zip(ctx.saved_tensors, needs, strict=True)]
            computed = _gradients(ctx.backward_pass, own)
            names = _names(ctx.backward_pass)
            pairs = [(computed[name], g) for name, g in zip(names, incoming, strict=True) if g is not None]
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


def _gradients(backward: BackwardPass, inputs: Tensors) -> dict[str, Tensor]:
    """The gradients that a backward pass computes, by name, from the portable formulas."""
    by_name = {name: t for name, t in zip(backward.names, inputs, strict=True) if t is not None}
    with no_autocast(backward.device.type):
        by_name |= backward.call.recomputed(differentiable_torch_namespace(), by_name)
    formulas = partial(backward.call.portable, differentiable_torch_namespace())
    return _outputs(formulas, backward.call.outputs, by_name)


def _outputs(formulas: Any, outputs: Sequence[Array], inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The outputs of a pass, by name, from the function of its portable formulas."""
    present = {name: t for name, t in inputs.items() if t is not None}
    with no_autocast(next(iter(present.values())).device.type):
        computed = formulas(present)
    return {array.name: computed[array.name].to(DTYPES[array.dtype]) for array in outputs}
