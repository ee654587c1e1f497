"""The passes of an op as JAX's primitive takes them, and the batching rule of `vmap`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..arch import Arch
from ..op import Call, Op, differentiable, saved_names
from ..program import Array, Program
from ..rows import Layouts
from ..spec import Fold
from ..xp import Namespace, jax_namespace
from .launch import primitive
from .sharding import bad_sharding, explicit, vary_alike

Arrays = Sequence[Any]
Axes = Sequence[int | None]


@dataclass(frozen=True)
class Bound:
    """A pass of an op as the primitive takes it; see `launch.Call`."""

    op: Op
    call: Call
    spec: Any

    def named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Its outputs by name, from arrays by name among which its inputs are."""
        made = primitive.bind(*vary_alike([arrays[name] for name in self.call.inputs]), call=self)
        return dict(zip((array.name for array in self.call.outputs), made, strict=True))

    def outputs(self) -> Sequence[Array]:
        """The results."""
        return self.call.outputs

    def check(self, arrays: Arrays) -> None:
        """Refuse arrays that explicit axes of a mesh shard: no pass divides its work."""
        for name, array in zip(self.call.inputs, arrays, strict=True):
            if sharded := explicit(array):
                raise bad_sharding(self.op.name, name, sharded)

    def program(self, arch: Arch) -> Program | None:
        """The kernels; JAX's arrays are dense."""
        return self.call.program({}, arch)

    def portable(self, *arrays: Any) -> list[Any]:
        """The same in plain JAX."""
        made = self.call.portable(jax_namespace(), dict(zip(self.call.inputs, arrays, strict=True)))
        return [made[array.name].astype(array.dtype) for array in self.call.outputs]

    def batch(self, arrays: Arrays, axes: Axes) -> tuple[Arrays, Sequence[int]]:
        """The call on a batch of inputs: folded into one call, or one after the other."""
        size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)
        batched = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arrays, axes, strict=True)]
        there = [axis is not None for axis in axes]
        fold = self._fold(there, size)
        if fold is not None:
            made = self._folded(fold, batched, there, size)
        else:
            made = jax.lax.map(partial(self._one, batched, there), _only(batched, there))
        return made, [0] * len(made)

    def _fold(self, there: Sequence[bool], size: int) -> Fold | None:
        """The first fold that shares no input that differs, and no output; none where numbers cut arrays into parts."""
        if any(name in self.op.indices for name in self.call.inputs):
            return None
        own = {*_only(self.call.inputs, there), *(array.name for array in self.call.outputs)}
        return next((fold for fold in self.op.folds(self.spec, size) if own <= fold.axes.keys()), None)

    def _folded(self, fold: Fold, batched: Arrays, there: Sequence[bool], size: int) -> list[Any]:
        inputs = []
        for name, array, is_there in zip(self.call.inputs, batched, there, strict=True):
            if name in fold.axes:
                whole = array if is_there else jnp.broadcast_to(array, (size, *array.shape))
                array = _joined(whole, fold.axes[name])
            inputs.append(array)
        results = primitive.bind(*inputs, call=self.again(fold.spec))
        return [
            _split(array, fold.axes[output.name], size, output.shape)
            for output, array in zip(self.call.outputs, results, strict=True)
        ]

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        raise NotImplementedError

    def transpose(self, cotangents: Arrays, arrays: Arrays) -> list[Any]:
        """The cotangent of each input in which the pass is linear; None for the others, which are saved arrays."""
        came = {array.name: cotangent for array, cotangent in zip(self.call.outputs, cotangents, strict=True)}
        made = self.transposed().named(dict(zip(self.call.inputs, arrays, strict=True)) | came)
        return [made.get(name) for name in self.call.inputs]

    def transposed(self) -> Bound:
        """The transpose of a pass that is linear in some of its inputs."""
        raise NotImplementedError

    def _one(self, batched: Arrays, there: Sequence[bool], rest: Arrays) -> list[Any]:
        left = iter(rest)
        inputs = [next(left) if is_there else array for array, is_there in zip(batched, there, strict=True)]
        made: list[Any] = primitive.bind(*inputs, call=self)
        return made


class Forward(Bound):
    """A forward pass."""

    @classmethod
    def of(cls, op: Op, spec: Any) -> Forward:
        """Of a checked call."""
        return cls(op, op.forward(spec), spec)

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Forward.of(self.op, spec)


class Backward(Bound):
    """A backward pass, for all gradients."""

    @classmethod
    def of(cls, op: Op, spec: Any) -> Backward:
        """Of a checked call."""
        return cls(op, op.backward(spec, differentiable(op)), spec)

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Backward.of(self.op, spec)

    def transposed(self) -> Bound:
        """As a linear map of the gradients that come in."""
        return Pushforward.of(self.op, self.spec, tuple(array.name for array in self.call.outputs))


@dataclass(frozen=True)
class Transpose:
    """The transpose of a backward call, which is linear in the gradients that come in; a `core.op.Call`.

    Attributes:
        backward: that call.
        saved: what it reads beside gradients.
        given: of the gradients that it makes, those whose place tangents take; of the others the tangent is zero.
        outputs: in the places of the gradients that it reads, the tangents of the results.
    """

    backward: Call
    saved: tuple[str, ...]
    given: tuple[str, ...]
    outputs: tuple[Array, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """What is saved, then tangents."""
        return (*self.saved, *self.given)

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """There is no kernel."""
        return None

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """From the portable formulas of the backward call, in JAX alone."""
        saved = {name: arrays[name] for name in self.saved}
        dtypes = {array.name: array.dtype for array in self.backward.outputs}

        def gradients(came: Mapping[str, Any]) -> dict[str, Any]:
            made = self.backward.portable(xp, {**saved, **came})
            return {name: made[name].astype(dtypes[name]) for name in self.given}

        like = saved[self.saved[0]]
        nothing = {array.name: xp.zeros(like, array.shape, array.dtype) for array in self.outputs}
        _, transposed = jax.vjp(gradients, nothing)
        (tangents,) = transposed({name: arrays[name] for name in self.given})
        found: dict[str, Any] = tangents
        return found


class Pushforward(Bound):
    """The derivative of an op, a linear map of tangents; its transpose is the backward pass."""

    call: Transpose

    @classmethod
    def of(cls, op: Op, spec: Any, given: tuple[str, ...]) -> Pushforward:
        """Of a checked call, for arguments with these names of gradients."""
        backward = op.backward(spec, differentiable(op))
        outputs = (replace(array, name=f"d{array.name}") for array in op.forward(spec).outputs)
        read = tuple(array for array in outputs if array.name in backward.inputs)
        return cls(op, Transpose(backward, saved_names(op, backward), given, read), spec)

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Pushforward.of(self.op, spec, self.call.given)

    def transposed(self) -> Bound:
        """The backward pass."""
        return Backward.of(self.op, self.spec)


def _joined(array: Any, axis: int | None) -> Any:
    """An array whose first axis counts calls, with the calls one after the other along `axis`."""
    if axis is None:
        return array
    array = jnp.moveaxis(array, 0, axis)
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _split(array: Any, axis: int | None, size: int, shape: tuple[int, ...]) -> Any:
    """The reverse of `_joined`, for `size` calls with an array of `shape` each."""
    if axis is None:
        return array
    return jnp.moveaxis(array.reshape(*shape[:axis], size, *shape[axis:]), axis, 0)


def _only(arrays: Sequence[Any], there: Sequence[bool]) -> list[Any]:
    return [array for array, is_there in zip(arrays, there, strict=True) if is_there]
