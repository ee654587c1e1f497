"""The passes of an op as parameters of the JAX primitive, and the batching rule for `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..arch import Arch
from ..errors import bad_shape
from ..op import Call, Op, differentiable, saved_names
from ..program import Array, Layouts, Program
from ..spec import Fold, known
from ..xp import Namespace
from .launch import primitive
from .partition import partitioned
from .sharding import bad_sharding, explicit, vary_alike
from .xp import jax_namespace

Arrays = Sequence[Any]
Axes = Sequence[int | None]


@dataclass(frozen=True)
class Bound:
    """A pass of an op as the parameter of the primitive; implements `launch.Call`."""

    op: Op
    call: Call
    spec: Any

    def named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Its outputs by name, from arrays by name, which may include more than its inputs."""
        outputs = primitive.bind(*vary_alike([arrays[name] for name in self.call.inputs]), call=self)
        return dict(zip((array.name for array in self.call.outputs), outputs, strict=True))

    def outputs(self) -> Sequence[Array]:
        """The arrays that the pass computes."""
        return self.call.outputs

    def check(self, arrays: Arrays) -> None:
        """Raise for arrays that are sharded over explicit axes of a mesh: a pass is not divided among devices."""
        for name, array in zip(self.call.inputs, arrays, strict=True):
            if sharded := explicit(array):
                raise bad_sharding(self.op.name, name, sharded)

    def program(self, arch: Arch) -> Program | None:
        """The launches; JAX's arrays are dense.

        Raises:
            ValueError: for sizes that are left open, since kernels are compiled for numbers.
        """
        for name in self.call.inputs:
            param = self.spec[name]
            if param is not None and not all(map(known, param.shape)):
                expected = "numbers, for which kernels are compiled; jax.export(platforms=['cpu']) leaves sizes open"
                raise bad_shape(self.op.name, name, param.shape, expected)
        return self.call.program({}, arch)

    def portable(self, *arrays: Any) -> list[Any]:
        """The outputs, computed in plain JAX."""
        outputs = self.call.portable(jax_namespace(), dict(zip(self.call.inputs, arrays, strict=True)))
        return [outputs[array.name].astype(array.dtype) for array in self.call.outputs]

    def batch(self, arrays: Arrays, axes: Axes) -> tuple[Arrays, Sequence[int]]:
        """The outputs for a batch of inputs, by one folded call or by one call after the other."""
        size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)
        batched = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arrays, axes, strict=True)]
        is_batched = [axis is not None for axis in axes]
        fold = self._fold(is_batched, size)
        if fold is not None:
            outputs = self._folded(fold, batched, is_batched, size)
        else:
            outputs = jax.lax.map(partial(self._one, batched, is_batched), _only(batched, is_batched))
        return outputs, [0] * len(outputs)

    def _fold(self, is_batched: Sequence[bool], size: int) -> Fold | None:
        """The first fold in which calls share no batched input and no output; None for packed sequences."""
        if any(name in self.op.indices for name in self.call.inputs):
            return None
        own = {*_only(self.call.inputs, is_batched), *(array.name for array in self.call.outputs)}
        return next((fold for fold in self.op.folds(self.spec, size) if own <= fold.axes.keys()), None)

    def _folded(self, fold: Fold, batched: Arrays, is_batched: Sequence[bool], size: int) -> list[Any]:
        inputs = []
        for name, array, has_batch in zip(self.call.inputs, batched, is_batched, strict=True):
            if name in fold.axes:
                whole = array if has_batch else jnp.broadcast_to(array, (size, *array.shape))
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

    def divided(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """See `launch.Traced`."""
        if not all(known(size) for name in self.spec.arguments for size in self.spec[name].shape):
            return partial(run, call=self)
        return partitioned(
            self.call, self.spec, partial(run, call=self), lambda own: partial(run, call=self.again(own))
        )

    def transpose(self, cotangents: Arrays, arrays: Arrays) -> list[Any]:
        """The cotangent of each input in which the pass is linear; None for the other inputs."""
        incoming = {array.name: cotangent for array, cotangent in zip(self.call.outputs, cotangents, strict=True)}
        found = self.transposed().named(dict(zip(self.call.inputs, arrays, strict=True)) | incoming)
        return [found.get(name) for name in self.call.inputs]

    def transposed(self) -> Bound:
        """The transpose of a pass that is linear in some of its inputs."""
        raise NotImplementedError

    def _one(self, batched: Arrays, is_batched: Sequence[bool], rest: Arrays) -> list[Any]:
        left = iter(rest)
        inputs = [next(left) if has_batch else array for array, has_batch in zip(batched, is_batched, strict=True)]
        outputs: list[Any] = primitive.bind(*inputs, call=self)
        return outputs


class Forward(Bound):
    """A forward pass."""

    @classmethod
    def of(cls, op: Op, spec: Any) -> Forward:
        """The pass of a checked call."""
        return cls(op, op.forward(spec), spec)

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Forward.of(self.op, spec)


class Backward(Bound):
    """A backward pass, for all gradients."""

    @classmethod
    def of(cls, op: Op, spec: Any) -> Backward:
        """The pass of a checked call."""
        return cls(op, op.backward(spec, differentiable(op)), spec)

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Backward.of(self.op, spec)

    def transposed(self) -> Bound:
        """Its transpose as a linear map of the gradients of results."""
        return Pushforward.of(self.op, self.spec, tuple(array.name for array in self.call.outputs))


@dataclass(frozen=True)
class Transpose:
    """The transpose of a backward pass, which is linear in the gradients of results; implements `core.op.Call`.

    It maps tangents of arguments to tangents of results, each under the name of the corresponding gradient.

    Attributes:
        backward: the backward pass.
        saved: the names of the other arrays that the backward pass reads.
        given: the names of the tangents that are passed; the tangents of other arguments are zero.
        outputs: the tangents of the results.
    """

    backward: Call
    saved: tuple[str, ...]
    given: tuple[str, ...]
    outputs: tuple[Array, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays of `saved`, then the tangents."""
        return (*self.saved, *self.given)

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """There is no kernel."""
        return None

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tangents of the results, from the portable formulas of the backward pass; only in JAX."""
        saved = {name: arrays[name] for name in self.saved}
        dtypes = {array.name: array.dtype for array in self.backward.outputs}

        def gradients(incoming: Mapping[str, Any]) -> dict[str, Any]:
            found = self.backward.portable(xp, {**saved, **incoming})
            return {name: found[name].astype(dtypes[name]) for name in self.given}

        like = saved[self.saved[0]]
        zeros = {array.name: xp.zeros(like, array.shape, array.dtype) for array in self.outputs}
        _, transposed = jax.vjp(gradients, zeros)
        (tangents,) = transposed({name: arrays[name] for name in self.given})
        by_name: dict[str, Any] = tangents
        return by_name


class Pushforward(Bound):
    """The derivative of an op, a linear map of tangents; its transpose is the backward pass."""

    call: Transpose

    @classmethod
    def of(cls, op: Op, spec: Any, given: tuple[str, ...]) -> Pushforward:
        """The derivative of a checked call, for the tangents of arguments whose gradients have these names."""
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
    """An array with one entry per call along its first axis, as the concatenation of the entries along `axis`."""
    if axis is None:
        return array
    array = jnp.moveaxis(array, 0, axis)
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _split(array: Any, axis: int | None, size: int, shape: tuple[int, ...]) -> Any:
    """The inverse of `_joined`, for `size` calls with an array of `shape` each."""
    if axis is None:
        return array
    return jnp.moveaxis(array.reshape(*shape[:axis], size, *shape[axis:]), axis, 0)


def _only(arrays: Sequence[Any], is_batched: Sequence[bool]) -> list[Any]:
    return [array for array, has_batch in zip(arrays, is_batched, strict=True) if has_batch]
