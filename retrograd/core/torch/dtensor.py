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

from ..declaration import alternatives
from ..errors import bad_type, bad_value
from ..op import Op
from ..spec import BATCH, SEQUENCES, CallSpec, arguments
from .passes import Options, Tensors, shapes_of, spec_of

Results = tuple[Tensor | None, ...]


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
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

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
    results = [name if spec[name] is not None else None for name in op.results]
    of_results = {name: letters_of(spec, name) for name in results if name is not None}
    placed: dict[str, list[Any]] = {name: [] for name in present}
    gradients: dict[str, list[Any]] = {name: [] for name in present}
    returned: dict[str, list[Any]] = {name: [] for name in of_results}
    for dim in range(mesh.ndim):
        placements = {name: present[name].placements[dim] for name in present if name not in plain}
        letter = _sharded(op, spec, letters, placements)
        for name, own in letters.items():
            axis = _axis(own, letter)
            if name not in plain:
                expected = Replicate() if axis is None else Shard(axis)
                if placements[name] != expected:
                    where = f"{expected}, since {first} is {placements[first]}"
                    raise bad_value(op.name, f"{name}.placements[{dim}]", placements[name], where)
                if axis is not None and present[name].shape[axis] % mesh.size(dim):
                    size = f"a multiple of {mesh.size(dim)}, by which it is sharded"
                    raise bad_value(op.name, f"{name}.shape[{axis}]", present[name].shape[axis], size)
                placed[name].append(expected)
                gradients[name].append(Partial() if axis is None and letter is not None else expected)
            elif axis is not None:
                raise bad_type(op.name, name, present[name], f"a DTensor, as {first}, which is sharded")
        for name, own in of_results.items():
            axis = _axis(own, letter)
            returned[name].append(Replicate() if axis is None else Shard(axis))
    if getattr(spec, "dropout_p", 0.0) and any(p != Replicate() for own in placed.values() for p in own):
        raise bad_value(op.name, "dropout_p", spec.dropout_p, "0 where arguments are sharded: it counts rows and heads")
    local = {
        name: tensor if name in plain or tensor is None else tensor.to_local(grad_placements=gradients[name])
        for name, tensor in arrays.items()
    }
    found = call(local, dict(settings))
    shapes = {array.name: array.shape for array in op.forward(spec).outputs}
    return tuple(
        None
        if tensor is None or name is None
        else DTensor.from_local(
            tensor.contiguous(),
            mesh,
            returned[name],
            run_check=False,
            shape=torch.Size(shapes[name]),
            stride=_dense(shapes[name]),
        )
        for name, tensor in zip(results, found, strict=True)
    )


def letters_of(spec: CallSpec, name: str) -> tuple[str | None, ...]:
    """The letter of each axis of an argument or result; None where it is broadcast, and for a group that all share.

    Axes of a letter of many are numbered. A letter that divides another one goes with it, as groups do with heads, and
    sequences that are not packed are rows.
    """
    declared = {result.name: result.shape for result in (*spec.results, *spec.kept)}
    param = spec[name]
    assert param is not None
    shape = arguments(type(spec))[name].shape if name in arguments(type(spec)) else declared[name]
    for axes in alternatives(shape):
        many = len(param.shape) - len(axes) + 1
        expanded = [
            (f"{axis.letter}[{place}]" if axis.many else axis.letter, axis)
            for axis in axes
            for place in (range(many) if axis.many else (0,))
        ]
        if len(expanded) == len(param.shape):
            return tuple(
                _base(spec, letter, size) if axis.may_be_one is False or size != 1 else None
                for (letter, axis), size in zip(expanded, param.shape, strict=True)
            )
    raise AssertionError(f"{name} has no declared shape")


def _base(spec: CallSpec, letter: str, size: int) -> str | None:
    if letter == SEQUENCES and not spec.packed:
        return BATCH
    if (same := spec.same_axes().get(letter)) is not None:
        return same
    declared = spec.letters.get(letter)
    if declared is not None and declared.divides is not None:
        return declared.divides if size > 1 else None
    return letter


def _sharded(
    op: Op, spec: CallSpec, letters: Mapping[str, tuple[str | None, ...]], placements: Mapping[str, Any]
) -> str | None:
    """The letter along which arguments are sharded over one axis of the mesh, None where none is."""
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
        return letter
    return None


def _axis(own: tuple[str | None, ...], letter: str | None) -> int | None:
    return own.index(letter) if letter is not None and letter in own else None


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))
