"""The two passes of selective_scan without a framework's binding, for its own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from retrograd.core.spec import Param
from retrograd.core.torch.launch import dtype_name
from retrograd.ops.selective_scan.op import OP, Spec
from retrograd.testing.draw import output_name

Arrays = dict[str, Tensor]
Run = Callable[[Any, Mapping[str, Tensor]], Mapping[str, Tensor]]  # runs a pass on its inputs


def spec_of(inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> Spec:
    params = {name: Param(tuple(t.shape), dtype_name(t.dtype)) for name, t in inputs.items()}
    spec: Spec = OP.spec(params, options)
    return spec


def call(run: Run, inputs: Mapping[str, Tensor], options: Mapping[str, Any], gradients: list[Tensor]) -> Arrays:
    """Results and gradients of both passes, named as in `retrograd.testing.draw.call`."""
    spec = spec_of(inputs, options)
    forward = OP.forward(spec)
    outputs = run(forward, {name: inputs[name] for name in forward.inputs})
    backward = OP.backward(spec, frozenset(inputs))
    results = [name for name in OP.results if any(array.name == name for array in forward.outputs)]
    tensors = {**inputs, **outputs, **{f"d{name}": g for name, g in zip(results, gradients, strict=True)}}
    backward_outputs = run(backward, {name: tensors[name] for name in backward.inputs})
    for pass_, arrays in ((forward, outputs), (backward, backward_outputs)):
        for array in pass_.outputs:
            tensor = arrays[array.name]
            assert tuple(tensor.shape) == array.shape, (array, tensor.shape)
            assert tensor.dtype == getattr(torch, array.dtype), (array, tensor.dtype)
    named = {output_name(i): outputs[name] for i, name in enumerate(results)}
    return named | {f"d {array.name[1:]}": backward_outputs[array.name] for array in backward.outputs}


def packed_and_alone(
    run: Run, inputs: Arrays, options: Mapping[str, Any], gradients: list[Tensor]
) -> Iterator[tuple[str, Arrays, Arrays]]:
    """For each packed sequence: its name, its arrays from the packed call, and those from a call on it alone."""
    together = call(run, inputs, options, gradients)
    states = {"initial_state", "output 1"}
    steps = {name for name in ("x", "dt", "z", "B", "C", "y") if name not in inputs or inputs[name].dim() > 2}
    for s, (start, end) in enumerate(pairwise(inputs["cu_seqlens"].tolist())):

        def own(name: str, tensor: Tensor, s: int = s, start: int = start, end: int = end) -> Tensor:
            name = name.removeprefix("d ")
            return tensor[s : s + 1] if name in states else tensor[:, start:end] if name in steps else tensor

        own_inputs = {name: own(name, tensor) for name, tensor in inputs.items() if name != "cu_seqlens"}
        own_gradients = [own(name, g) for name, g in zip(("y", "output 1"), gradients, strict=False)]
        alone = call(run, own_inputs, options, own_gradients)
        names = [name for name in alone if name.removeprefix("d ") in states | steps]
        yield f"sequence {s}", {n: own(n, together[n]) for n in names}, {n: alone[n] for n in names}
