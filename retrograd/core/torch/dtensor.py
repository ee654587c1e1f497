"""DTensors as arguments: a call is computed on what each process has.

It may be sharded along the axes that an op declares as `independent`, such as rows and heads: parts along them do not
see one another, so nothing is sent. What lacks the axis, such as a weight, is replicated; its gradient is a sum over
the processes that DTensor takes when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from ..errors import bad_type, bad_value
from ..letters import letters_of
from ..op import Op
from ..program import dense
from ..spec import CallSpec, arguments
from .context import Results
from .passes import Options, Tensors, shapes_of, spec_of


def is_distributed(tensors: Tensors) -> bool:
    """Whether one of them is a DTensor."""
    return any(hasattr(tensor, "device_mesh") for tensor in tensors)


@_disable_dynamo  # out of the graph; as `torch.compiler.disable`, which imports the compiler at once
def on_locals(op: Op, call: Callable[..., Results], arrays: Mapping[str, Any], settings: Mapping[str, Any]) -> Results:
    """The results of a call as DTensors, of whose arguments those with a gradient are DTensors.

    Raises:
        ValueError, TypeError: naming the argument, for plain tensors beside DTensors, another mesh, and placements
            along which the op's parts see one another.
    """
    from torch.distributed.tensor import DTensor, Partial

    tensors: Tensors = tuple(arrays.values())
    given: Options = tuple(settings.values())
    spec = spec_of(op, shapes_of(tensors), given)
    present = {name: tensor for name, tensor in arrays.items() if tensor is not None}
    first, mesh = next((name, t.device_mesh) for name, t in present.items() if isinstance(t, DTensor))
    plain = {name for name, t in present.items() if not isinstance(t, DTensor)}
    for name, tensor in present.items():
        if name in plain and arguments(op.call)[name].differentiable:
            raise bad_type(op.name, name, tensor, f"a DTensor, as {first}")
        if name not in plain and tensor.device_mesh != mesh:
            raise bad_value(op.name, f"{name}.device_mesh", tensor.device_mesh, f"{mesh}, as that of {first}")
    letters = {name: letters_of(spec, name) for name in present}
    along: list[str | None] = []  # for each axis of the mesh the letter along which arguments are sharded
    for dim in range(mesh.ndim):
        placements = {name: present[name].placements[dim] for name in present if name not in plain}
        sharded = _sharded(op, spec, letters, placements)
        why = f", since {sharded} is {placements[sharded]}" if sharded is not None else ""
        along.append(None if sharded is None else letters[sharded][placements[sharded].dim])
        for name, own in letters.items():
            axis = _axis(own, along[dim])
            if name not in plain:
                expected = _placement(axis)
                if placements[name] != expected:
                    raise bad_value(op.name, f"{name}.placements[{dim}]", placements[name], f"{expected}{why}")
                if axis is not None and present[name].shape[axis] % mesh.size(dim):
                    size = f"a multiple of {mesh.size(dim)}, by which it is sharded"
                    raise bad_value(op.name, f"{name}.shape[{axis}]", present[name].shape[axis], size)
            elif axis is not None:
                raise bad_type(op.name, name, present[name], f"a DTensor, as {first}, which is sharded")
    if getattr(spec, "dropout_p", 0.0) and any(letter is not None for letter in along):
        raise bad_value(op.name, "dropout_p", spec.dropout_p, "0 where arguments are sharded: it counts rows and heads")

    def gradient_of(name: str) -> list[Any]:
        axes = [(_axis(letters[name], letter), letter) for letter in along]
        return [Partial() if axis is None and letter is not None else _placement(axis) for axis, letter in axes]

    local = {
        name: tensor if tensor is None or name in plain else tensor.to_local(grad_placements=gradient_of(name))
        for name, tensor in arrays.items()
    }
    shapes = {array.name: array.shape for array in op.forward(spec).outputs}

    def distributed(name: str, tensor: Tensor) -> Tensor:
        own, shape = letters_of(spec, name), torch.Size(shapes[name])
        placements = [_placement(_axis(own, letter)) for letter in along]
        return DTensor.from_local(
            tensor.contiguous(), mesh, placements, run_check=False, shape=shape, stride=dense(shape)
        )

    found = zip(op.results, call(local, dict(settings)), strict=True)
    return tuple(None if tensor is None else distributed(name, tensor) for name, tensor in found)


def _sharded(
    op: Op, spec: CallSpec, letters: Mapping[str, tuple[str | None, ...]], placements: Mapping[str, Any]
) -> str | None:
    """The first argument that is sharded over an axis of the mesh, None where none is."""
    for name, placement in placements.items():
        if placement.is_partial():
            raise bad_value(op.name, f"{name}.placements", placement, "no partial sum: redistribute it first")
    for name, placement in placements.items():
        if not placement.is_shard():
            continue
        letter = letters[name][placement.dim]
        if letter is None or letter.partition("[")[0] not in spec.independent:
            words = [spec.letters[own].word if own in spec.letters else "rows" for own in spec.independent]
            along = f"Replicate(), or Shard along {' or '.join(words)}"
            raise bad_value(op.name, f"{name}.placements", placement, along)
        return name
    return None


def _axis(own: tuple[str | None, ...], letter: str | None) -> int | None:
    return own.index(letter) if letter is not None and letter in own else None


def _placement(axis: int | None) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    return Replicate() if axis is None else Shard(axis)
