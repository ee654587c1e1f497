"""What every op promises under PyTorch's transformations, one function for each promise; each raises AssertionError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from retrograd.core.spec import autocast_ranks
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import (
    Arrays,
    Function,
    call,
    differentiable,
    gradients_of,
    leaves,
    options,
    output_name,
    outputs,
)

from .contract import drawn, take
from .parts import batch_size


class PassThrough(TorchDispatchMode):
    """A dispatch mode that changes nothing; it makes calls use the registered operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function."""
        return func(*args, **(kwargs or {}))


def check_operator(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """The registered operator and the direct path compute the same bits."""
    inputs, gradients = drawn(info, case, device, seed)
    direct = call(info.torch, inputs, options(case), gradients)
    with PassThrough():
        dispatched = call(info.torch, inputs, options(case), gradients)
    assert_same_bits(dispatched, direct, f"{info.name}, {case.name}: the operator and the direct path")


def check_compile(info: OpInfo, case: Case, device: str, seed: int, backend: str, dynamic: bool) -> None:
    """The op compiles without a graph break, bitwise equal to eager; another dynamic batch size does not recompile."""
    torch._dynamo.reset()
    compiled = torch.compile(info.torch, fullgraph=True, dynamic=dynamic, backend=backend)
    inputs, gradients = drawn(info, case, device, seed)
    where = f"{info.name}, {case.name}: torch.compile, {backend}, dynamic={dynamic}"
    expected = call(info.torch, inputs, options(case), gradients)
    assert_same_bits(call(compiled, inputs, options(case), gradients), expected, where)
    rows = batch_size(info, case)
    if not dynamic or rows < 3:  # sizes 0 and 1 are always specialised
        return
    part, part_gradients = take(info, case, inputs, gradients, 0, rows - 1)
    expected = call(info.torch, part, options(case), part_gradients)
    with torch._dynamo.config.patch(error_on_recompile=True):
        try:
            result = call(compiled, part, options(case), part_gradients)
        except torch._dynamo.exc.RecompileError as error:
            raise AssertionError(f"{where}: another batch compiles again: {error}") from error
    assert_same_bits(result, expected, f"{where}, {rows - 1} rows")


def check_autocast(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """Autocast casts what the declaration says, and changes nothing else: the op accumulates in float32."""
    inputs, gradients = drawn(info, case, device, seed)
    ranks = {} if info.op is None else autocast_ranks(info.op.call)
    names = list(inputs)
    for dtype in (torch.bfloat16, torch.float16):

        def casted(name: str, tensor: Tensor) -> Tensor:
            narrow = tensor.dtype in (torch.bfloat16, torch.float16)
            activation = tensor.dtype == torch.float32 and tensor.ndim in ranks.get(name, ())
            return tensor.to(dtype) if activation or (narrow and name in ranks) else tensor  # noqa: B023

        def explicit(first: Tensor, **rest: Any) -> Any:
            given = {names[0]: first} | rest
            return info.torch(**{n: casted(n, t) if isinstance(t, Tensor) else t for n, t in given.items()})

        expected = call(explicit, inputs, options(case), gradients)
        with torch.autocast(device, dtype=dtype):
            result = call(info.torch, inputs, options(case), gradients)
        assert_same_bits(result, expected, f"{info.name}, {case.name}: autocast to {dtype}")


def check_checkpoint(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """Both kinds of activation checkpointing (reentrant or not) give bitwise equal gradients."""
    inputs, gradients = drawn(info, case, device, seed)
    expected = call_backward(info.torch, inputs, options(case), gradients)
    for reentrant in (False, True):

        def recomputed(first: Tensor, **rest: Any) -> tuple[Tensor, ...]:
            tensors = {name: tensor for name, tensor in rest.items() if name in inputs}
            statics = {name: value for name, value in rest.items() if name not in inputs}

            def run(*arrays: Tensor) -> tuple[Tensor, ...]:
                return outputs(info.torch, dict(zip(inputs, arrays, strict=True)), statics)

            results = checkpoint(run, first, *tensors.values(), use_reentrant=reentrant)  # noqa: B023
            return tuple(results)

        result = call_backward(recomputed, inputs, options(case), gradients)
        assert_same_bits(result, expected, f"{info.name}, {case.name}: checkpoint, use_reentrant={reentrant}")


def call_backward(
    function: Function, inputs: Mapping[str, Tensor], options: Mapping[str, Any], gradients: Sequence[Tensor]
) -> Arrays:
    """As `draw.call`, but by `backward()` into `.grad`: reentrant checkpointing supports nothing else."""
    arguments = leaves(inputs)
    returned = outputs(function, arguments, options)
    torch.autograd.backward(returned, list(gradients))
    results = {output_name(i): tensor.detach() for i, tensor in enumerate(returned)}
    for name, leaf in arguments.items():
        if leaf.requires_grad:
            assert leaf.grad is not None, f"no gradient of {name}"
            results[f"d {name}"] = leaf.grad
    return results


def check_subsets(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """A gradient has the same bits whether or not other gradients are requested."""
    inputs, gradients = drawn(info, case, device, seed)
    everything = call(info.torch, inputs, options(case), gradients)
    for wanted in (name for name, tensor in inputs.items() if differentiable(tensor)):
        arguments = {name: tensor.detach().requires_grad_(name == wanted) for name, tensor in inputs.items()}
        found = gradients_of(outputs(info.torch, arguments, options(case)), arguments, gradients)
        expected = {f"d {wanted}": everything[f"d {wanted}"]}
        assert_same_bits(found, expected, f"{info.name}, {case.name}: asked for alone")


def check_outputs_alone(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """An unused output is treated as one with a gradient of zeros, by the direct path and by the operator."""
    inputs, gradients = drawn(info, case, device, seed)
    for used in range(len(gradients)):
        zeros = [g if i == used else torch.zeros_like(g) for i, g in enumerate(gradients)]
        expected = call(info.torch, inputs, options(case), zeros)
        for mode in (nullcontext(), PassThrough()):
            arguments = leaves(inputs)
            with mode:
                found = gradients_of(
                    outputs(info.torch, arguments, options(case))[used:][:1], arguments, gradients[used:][:1]
                )
            for name, gradient in found.items():
                where = f"{info.name}, {case.name}: with {output_name(used)} alone, {name}"
                assert torch.equal(gradient, expected[name]), f"{where} is another"
