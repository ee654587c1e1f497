"""rms_norm for JAX: the public function, its derivative, and how a batch of calls folds into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array as JaxArray
from jaxtyping import Float

from retrograd.core.arch import Arch
from retrograd.core.jax_op import params_of
from retrograd.core.program import Array, Program
from retrograd.core.xla_launch import primitive, vary_alike
from retrograd.core.xp import jax_namespace

from . import portable
from .jax_batch import fold_of
from .spec import OP, Options, Spec

Arrays = Sequence[Any]
Axes = Sequence[int | None]


@overload
def rms_norm(
    x: Float[JaxArray, "*batch N"],
    weight: Float[JaxArray, " N"] | Float[JaxArray, "H N"] | None = ...,
    *,
    bias: Float[JaxArray, " N"] | Float[JaxArray, "H N"] | None = ...,
    residual: Float[JaxArray, "*batch N"] | None = ...,
    gate: Float[JaxArray, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[False] = ...,
    out_dtype: Any = ...,
) -> Float[JaxArray, "*batch N"]: ...


@overload
def rms_norm(
    x: Float[JaxArray, "*batch N"],
    weight: Float[JaxArray, " N"] | Float[JaxArray, "H N"] | None = ...,
    *,
    bias: Float[JaxArray, " N"] | Float[JaxArray, "H N"] | None = ...,
    residual: Float[JaxArray, "*batch N"] | None = ...,
    gate: Float[JaxArray, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[True],
    out_dtype: Any = ...,
) -> tuple[Float[JaxArray, "*batch N"], Float[JaxArray, "*batch N"]]: ...


def rms_norm(
    x: Float[JaxArray, "*batch N"],
    weight: Float[JaxArray, " N"] | Float[JaxArray, "H N"] | None = None,
    *,
    bias: Float[JaxArray, " N"] | Float[JaxArray, "H N"] | None = None,
    residual: Float[JaxArray, "*batch N"] | None = None,
    gate: Float[JaxArray, "*batch N"] | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    prenorm: bool = False,
    out_dtype: Any = None,
) -> JaxArray | tuple[JaxArray, JaxArray]:
    """Root-mean-square normalisation of the last dimension; the same call as `retrograd.rms_norm`.

    Shapes, options, results and errors are documented there; `out_dtype` is anything `jax.numpy.dtype` takes. On an
    NVIDIA GPU it launches the same kernels as the PyTorch function; on a CPU or TPU it is plain JAX. What the backward
    pass keeps beside its inputs is named `rms_norm_sum` and `rms_norm_rstd` for `jax.checkpoint` policies.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import rms_norm
        >>> x = jnp.ones((2, 16, 64))
        >>> dx = jax.grad(lambda x: rms_norm(x, jnp.ones(64)).sum())(x)
        >>> dx.shape
        (2, 16, 64)
    """
    arrays = {"x": x, "weight": weight, "bias": bias, "residual": residual, "gate": gate}
    params = params_of(OP, arrays)
    out_name = None if out_dtype is None else str(jnp.dtype(out_dtype))
    options = Options(eps, weight_offset, group_size, norm_before_gate, out_name)
    spec = Spec(**params, options=options)  # type: ignore[arg-type]
    y, s = _rms_norm(spec, *vary_alike(list(arrays.values())))
    if not prenorm:
        return y
    return y, x if s is None else s


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rms_norm(spec: Spec, *arrays: Any) -> tuple[Any, Any]:
    y, s, _ = _forward(spec, *arrays)
    return y, s


def _forward(spec: Spec, x: Any, weight: Any, bias: Any, residual: Any, gate: Any) -> tuple[Any, Any, Any]:
    """(y, s, rstd); s is None without a residual."""
    present = [array for array in (x, residual, gate, weight, bias) if array is not None]
    y, *s, rstd = primitive.bind(*present, call=Forward(spec))
    return y, (s[0] if s else None), rstd


def _forward_rule(spec: Spec, *arrays: Any) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    x, weight, bias, _, gate = arrays
    y, s, rstd = _forward(spec, *arrays)
    rstd = checkpoint_name(rstd, "rms_norm_rstd")
    if s is not None:
        s = checkpoint_name(s, "rms_norm_sum")
    return (y, s), (x if s is None else s, gate, weight, bias, rstd)


def _backward_rule(spec: Spec, saved: tuple[Any, ...], gradients: tuple[Any, Any]) -> tuple[Any, ...]:
    dy, dsum = gradients
    s, gate, weight, bias, rstd = saved
    if not spec.gate_last:
        bias = None
    call = Backward(spec)
    present = [array for array in (dy, dsum, s, gate, weight, bias, rstd) if array is not None]
    made = dict(zip((a.name for a in call.outputs()), primitive.bind(*present, call=call), strict=True))
    dresidual = made.get("dresidual", made["dx"]) if spec.residual else None
    return made["dx"], made.get("dweight"), made.get("dbias"), dresidual, made.get("dgate")


_rms_norm.defvjp(_forward_rule, _backward_rule)


@dataclass(frozen=True)
class Forward:
    """(x, residual, gate, weight, bias) -> (y, sum, rstd), each where it is there."""

    spec: Spec

    def names(self) -> list[str]:
        """The inputs that are there."""
        return [n for n in ("x", "residual", "gate", "weight", "bias") if getattr(self.spec, n) is not None]

    def outputs(self) -> list[Array]:
        """The results."""
        spec = self.spec
        s = [Array("sum", spec.x.shape, spec.sum_dtype)] if spec.residual else []
        return [Array("y", spec.x.shape, spec.out_dtype), *s, _rstd(spec)]

    def program(self, arch: Arch) -> Program:
        """The kernels."""
        from . import schedule

        return schedule.forward(self.spec, {}, arch)

    def portable(self, *arrays: Any) -> list[Any]:
        """The same in plain JAX."""
        given = dict(zip(self.names(), arrays, strict=True))
        names = ("x", "weight", "bias", "residual", "gate")
        results = portable.forward(jax_namespace(), self.spec, *map(given.get, names))
        return [r for r in results if r is not None]

    def batch(self, arrays: Arrays, axes: Axes) -> tuple[Arrays, Sequence[int]]:
        """The call on a batch of inputs."""
        return _bind_folded(self, arrays, axes, parameter_gradients=False)


@dataclass(frozen=True)
class Backward:
    """(dy, dsum, s, gate, weight, bias, rstd) -> (dx, dresidual, dgate, dweight, dbias), each where it is there."""

    spec: Spec

    def names(self) -> list[str]:
        """The inputs that are there; a sum always comes with its gradient, which JAX fills with zeros."""
        spec = self.spec
        there = {
            "dsum": spec.residual,
            "gate": spec.gate,
            "weight": spec.weight,
            "bias": spec.bias if spec.gate_last else None,
        }
        return [n for n in ("dy", "dsum", "s", "gate", "weight", "bias", "rstd") if there.get(n, spec) is not None]

    def outputs(self) -> list[Array]:
        """The results."""
        spec = self.spec
        there = {
            "dx": spec.x,
            "dresidual": spec.residual if spec.separate_dresidual else None,
            "dgate": spec.gate,
            "dweight": spec.weight,
            "dbias": spec.bias,
        }
        return [Array(name, p.shape, p.dtype) for name, p in there.items() if p is not None]

    def program(self, arch: Arch) -> Program:
        """The kernels."""
        from . import schedule

        return schedule.backward(self.spec, {}, arch, prenorm=self.spec.residual is not None, parameters=True)

    def portable(self, *arrays: Any) -> list[Any]:
        """The same in plain JAX."""
        given = dict(zip(self.names(), arrays, strict=True))
        names = ("dy", "dsum", "s", "weight", "bias", "gate", "rstd")
        made = portable.backward(jax_namespace(), self.spec, *map(given.get, names))
        results = dict(zip(("dx", "dresidual", "dgate", "dweight", "dbias"), made, strict=True))
        return [results[output.name] for output in self.outputs()]

    def batch(self, arrays: Arrays, axes: Axes) -> tuple[Arrays, Sequence[int]]:
        """The call on a batch of inputs; each example has parameter gradients of its own."""
        return _bind_folded(self, arrays, axes, parameter_gradients=True)


def _bind_folded(
    call: Forward | Backward, arrays: Arrays, axes: Axes, parameter_gradients: bool
) -> tuple[Arrays, Sequence[int]]:
    names = call.names()
    size = next(array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None)
    fold = fold_of(call.spec, names, axes, size, parameter_gradients)
    inputs = [fold.into(name, array, axis) for name, array, axis in zip(names, arrays, axes, strict=True)]
    results = primitive.bind(*inputs, call=type(call)(fold.folded))
    made = [fold.out_of(o.name, result, o.shape) for o, result in zip(call.outputs(), results, strict=True)]
    return made, [0] * len(made)


def _rstd(spec: Spec) -> Array:
    return Array("rstd", (spec.rows * spec.heads,), spec.compute_dtype)
