"""Calls on DTensors, in two processes: every op, every axis along which it may be sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from retrograd.core.letters import letters_of
from retrograd.core.op import Op
from retrograd.core.spec import options as declared
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos
from retrograd.testing.draw import draw, options, outputs

Arrays = Mapping[str, Tensor]
MOST = 20_000  # elements of a case


def letters(op: Op, case: Case, inputs: Arrays) -> dict[str, tuple[str | None, ...]]:
    """The letters of each argument's axes."""
    tensors = [inputs.get(name) for name in op.arguments]
    given = {name: option.default for name, option in declared(op.call).items()} | options(case)
    spec = spec_of(op, shapes_of(tensors), tuple(given[name] for name in op.options))
    return {name: letters_of(spec, name) for name in inputs if name in op.arguments}


def ways(op: OpInfo, case: Case, inputs: Arrays, world: int) -> Iterator[dict[str, Any]]:
    """Placements of all arguments: replicated, and sharded along each axis whose parts are independent."""
    assert op.op is not None
    named = letters(op.op, case, inputs)
    yield dict.fromkeys(inputs, Replicate())
    every = dict.fromkeys(letter for own in named.values() for letter in own if letter is not None)
    for letter in every:
        if letter.partition("[")[0] in op.op.call.independent:
            axes = {name: own.index(letter) for name, own in named.items() if letter in own}
            if all(inputs[name].shape[axis] % world == 0 for name, axis in axes.items()):
                yield {name: Shard(axes[name]) if name in axes else Replicate() for name in inputs}


def with_gradients(op: OpInfo, inputs: Arrays, case: Case) -> dict[str, Tensor]:
    """Outputs and gradients by name, whole."""
    leaves = {n: t.detach().requires_grad_(leaf_of(t)) for n, t in inputs.items()}
    found = outputs(op.torch, leaves, options(case))
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    loss = sum((whole(out).abs().square() * 0.5).sum() for out in found)
    assert isinstance(loss, Tensor)
    gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    named = {f"d {name}": g for name, g in zip(wanted, gradients, strict=True) if g is not None}
    return {name: whole(t).detach() for name, t in ({f"out {i}": out for i, out in enumerate(found)} | named).items()}


def leaf_of(tensor: Tensor) -> bool:
    """Whether it has a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def every_op(rank: int, world: int, device: str) -> dict[str, int]:
    """How many ways each op was called in; raises where results differ from those of plain tensors."""
    mesh = init_device_mesh(device, (world,))
    counts: dict[str, int] = {}
    for op in infos():
        if op.op is None:
            continue
        for case in op.cases:
            if case.options.get("dropout_p") or sum(prod(drawn.shape) for drawn in case.inputs.values()) > MOST:
                continue
            inputs = {name: t.to(device) for name, t in draw(case, "cpu", 0).items()}
            expected = with_gradients(op, inputs, case)
            for placements in ways(op, case, inputs, world):
                placed: dict[str, Tensor] = {n: distribute_tensor(t, mesh, [placements[n]]) for n, t in inputs.items()}
                for name, tensor in inputs.items():  # boundaries need not be DTensors
                    if not leaf_of(tensor) and placements[name] == Replicate():
                        placed[name] = tensor
                try:
                    found = with_gradients(op, placed, case)
                except Exception as error:
                    error.add_note(f"{op.name} {case.name} {placements}")
                    raise
                assert found.keys() == expected.keys(), (op.name, case.name)
                for name, value in found.items():
                    apart = (value - expected[name]).abs().max() if value.numel() else 0.0
                    # Each process rounds its part of a sum to the dtype before the parts are added.
                    most = world * torch.finfo(value.dtype).eps * expected[name].abs().max() if value.numel() else 0.0
                    if name.startswith("out") and placements[next(iter(inputs))] == Shard(0):
                        assert torch.equal(value, expected[name]), f"{op.name} {case.name}: rows have other bits"
                    assert apart <= 2 * most + 1e-6, f"{op.name} {case.name} {placements} {name}: {apart} apart"
                counts[op.name] = counts.get(op.name, 0) + 1
    return counts
