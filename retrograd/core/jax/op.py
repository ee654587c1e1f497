"""Turns an `Op` into a JAX function: a primitive for each pass, and a `custom_jvp` around them.

The derivative is a linear primitive of its own. For reverse mode JAX transposes it, and its transpose is the backward
pass, so JAX saves exactly what the backward pass reads. Forward mode evaluates the derivative in plain JAX. Higher
derivatives, which differentiate the passes themselves, use the portable formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from ..errors import bad_type
from ..op import Op, differentiable, gradient_names
from .arguments import arrays_of, check_numbers, params_of, with_open_sizes
from .context import Context, Results
from .passes import Forward, Pushforward
from .sharding import by_rows, vary_alike

Arrays = Sequence[Any]


@cache
def bind(op: Op) -> Callable[..., Results]:
    """The function from arrays, options and a context, the first two dicts by name in the op's order, to its results.

    It has derivatives of every order, in reverse and in forward mode. The outputs of the forward pass are named
    `<op>_<array>` for `jax.checkpoint` policies.
    """
    derived = _derived(op)

    def call(arrays: dict[str, Any], options: dict[str, Any], context: Context | None = None) -> Results:
        if context is not None:
            if not isinstance(context, Context):
                raise bad_type(op.name, "context", context, "a retrograd.jax.distributed.ContextParallel")
            return context.call(op, call, arrays, options)
        checked = arrays_of(op.name, arrays)
        with with_open_sizes(op.name, checked):
            spec = op.spec(params_of(checked), options)
        check_numbers(spec, checked)
        results: Results = by_rows(op, spec, checked, alike)
        return results

    def alike(spec: Any, *arrays: Any) -> Results:
        results: Results = derived(spec, *vary_alike(arrays))
        return results

    return call


def _derived(op: Op) -> Callable[..., Results]:
    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def function(spec: Any, *arrays: Any) -> Results:
        return _results(op, spec, Forward.of(op, spec).named(dict(zip(op.arguments, arrays, strict=True))))

    def derivative(spec: Any, arrays: Arrays, tangents: Arrays) -> tuple[Results, Results]:
        by_name = dict(zip(op.arguments, arrays, strict=True))
        outputs = Forward.of(op, spec).named(by_name)
        outputs = {name: checkpoint_name(array, f"{op.name}_{name}") for name, array in outputs.items()}
        results = _results(op, spec, outputs)
        moving: dict[str, Any] = {}
        reached = {f"d{name}" for name in differentiable(op)}
        for name, tangent in zip(gradient_names(op, spec), tangents, strict=True):
            if tangent is not None and not isinstance(tangent, SymbolicZero):
                if name not in reached:
                    raise TypeError(f"{op.name}: {name[1:]} has no derivative")
                # Arguments with the same gradient enter the derivative as the sum of their tangents.
                moving[name] = moving[name] + tangent if name in moving else tangent
        if not moving:
            return results, jax.tree.map(jnp.zeros_like, results)
        # PyTorch's gradient of a complex array, which the kernels compute, is the conjugate of JAX's.
        pushed = Pushforward.of(op, spec, tuple(moving)).named(
            by_name | outputs | {name: _conj(tangent) for name, tangent in moving.items()}
        )
        return results, tuple(_conj(pushed[f"d{name}"]) if f"d{name}" in pushed else None for name in op.results)

    function.defjvp(derivative, symbolic_zeros=True)
    return function


def _results(op: Op, spec: Any, outputs: Mapping[str, Any]) -> Results:
    """The results that are returned to the user: those whose gradients the backward pass reads."""
    read = op.backward(spec, differentiable(op)).inputs
    return tuple(outputs[name] if f"d{name}" in read else None for name in op.results)


def _conj(array: Any) -> Any:
    return jnp.conj(array) if jnp.iscomplexobj(array) else array
