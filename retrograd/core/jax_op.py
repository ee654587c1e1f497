"""Turns an `Op` into a JAX function: a primitive for each pass, a `custom_vjp` around them, and a rule for `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from .arch import Arch
from .errors import bad_type
from .op import Call, Fold, Op, Param, differentiable, gradient_names, saved_names
from .program import Array, Program
from .xla_launch import primitive, vary_alike
from .xp import jax_namespace

Arrays = Sequence[Any]
Axes = Sequence[int | None]
Results = tuple[Any, ...]  # one for each of the op's results, None where it is not there


def bind(op: Op) -> Callable[[Arrays, Sequence[Any]], Results]:
    """The function from an op's arrays and options, each in the op's order, to its results.

    What the backward pass keeps beside its inputs is named `<op>_<array>` for `jax.checkpoint` policies.
    """
    derived = _derived(op)

    def call(arrays: Arrays, options: Sequence[Any]) -> Results:
        params = params_of(op.name, dict(zip(op.arguments, arrays, strict=True)))
        spec = op.spec(params, dict(zip(op.options, options, strict=True)))
        results: Results = derived(spec, *vary_alike(arrays))
        return results

    return call


def params_of(op: str, arrays: Mapping[str, Any]) -> dict[str, Param | None]:
    """Shape and dtype of each argument, None where it is absent; the first has to be there."""
    params: dict[str, Param | None] = {}
    for place, (name, array) in enumerate(arrays.items()):
        if array is None and place:
            params[name] = None
        elif isinstance(array, jax.Array | np.ndarray):
            params[name] = Param(tuple(array.shape), str(array.dtype))
        else:
            raise bad_type(op, name, array, "a jax.Array")
    return params


def _derived(op: Op) -> Callable[..., Results]:
    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def function(spec: Any, *arrays: Any) -> Results:
        return _results(op, _forward(op, spec, arrays))

    def forward_rule(spec: Any, *arrays: Any) -> tuple[Results, dict[str, Any]]:
        made = _forward(op, spec, arrays)
        named = {name: checkpoint_name(made[name], f"{op.name}_{name}") for name in made}
        by_name = dict(zip(op.arguments, arrays, strict=True)) | named
        saved = saved_names(op, op.backward(spec, differentiable(op)))
        return _results(op, named), {name: by_name[name] for name in saved}

    def backward_rule(spec: Any, saved: Mapping[str, Any], came: Results) -> tuple[Any, ...]:
        # PyTorch's gradient of a complex array, which the kernels compute, is the conjugate of JAX's.
        gradients = {f"d{name}": _conj(g) for name, g in zip(op.results, came, strict=True) if g is not None}
        call = Backward(op, op.backward(spec, differentiable(op)), spec)
        by_name = {**saved, **gradients}
        inputs = [by_name[name] for name in call.call.inputs]
        made = dict(zip((a.name for a in call.outputs()), primitive.bind(*inputs, call=call), strict=True))
        return tuple(_conj(made[name]) if name in made else None for name in gradient_names(op, spec))

    function.defvjp(forward_rule, backward_rule)
    return function


def _forward(op: Op, spec: Any, arrays: Arrays) -> dict[str, Any]:
    call = Forward(op, op.forward(spec), spec)
    given = dict(zip(op.arguments, arrays, strict=True))
    made = primitive.bind(*(given[name] for name in call.call.inputs), call=call)
    return dict(zip((array.name for array in call.outputs()), made, strict=True))


def _results(op: Op, made: Mapping[str, Any]) -> Results:
    return tuple(made.get(name) for name in op.results)


def _conj(array: Any) -> Any:
    return jnp.conj(array) if jnp.iscomplexobj(array) else array


@dataclass(frozen=True)
class Bound:
    """A pass of an op as the primitive takes it; see `xla_launch.Call`."""

    op: Op
    call: Call
    spec: Any

    def outputs(self) -> Sequence[Array]:
        """The results."""
        return self.call.outputs

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

    def _one(self, batched: Arrays, there: Sequence[bool], rest: Arrays) -> list[Any]:
        left = iter(rest)
        inputs = [next(left) if is_there else array for array, is_there in zip(batched, there, strict=True)]
        made: list[Any] = primitive.bind(*inputs, call=self)
        return made


class Forward(Bound):
    """A forward pass."""

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Forward(self.op, self.op.forward(spec), spec)


class Backward(Bound):
    """A backward pass, for all gradients."""

    def again(self, spec: Any) -> Bound:
        """The same pass of another call."""
        return Backward(self.op, self.op.backward(spec, differentiable(self.op)), spec)


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
