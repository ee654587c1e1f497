"""rms_norm for PyTorch: the public function, and the registered operators that tracing and subclasses go through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.errors import bad_type, bad_value
from retrograd.core.op import Param
from retrograd.core.torch_arguments import absent, concrete, not_a_tensor
from retrograd.core.torch_launch import (
    DTYPES,
    Key,
    Runner,
    arch_of,
    dtype_name,
    key,
    launches_directly,
    layouts,
    prepare,
)
from retrograd.core.xp import torch_namespace

from . import portable
from .spec import OP, Options, Spec

# eps, weight_offset, group_size, norm_before_gate, out_dtype
Static = tuple[float, float, int | None, bool, torch.dtype | None]
Tensors = tuple[Tensor | None, ...]
Keys = tuple[Key | None, ...]
Params = tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]  # shape and dtype of each argument

ARGUMENTS = ("x", "weight", "bias", "residual", "gate")
GRADIENTS = ("dx", "dresidual", "dgate", "dweight", "dbias")
SAVED = ("dy", "dsum", "s", "gate", "weight", "bias", "rstd")


@overload
def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    residual: Float[Tensor, "*batch N"] | None = ...,
    gate: Float[Tensor, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[False] = ...,
    out_dtype: torch.dtype | None = ...,
) -> Float[Tensor, "*batch N"]: ...


@overload
def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    residual: Float[Tensor, "*batch N"] | None = ...,
    gate: Float[Tensor, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[True],
    out_dtype: torch.dtype | None = ...,
) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N"]]: ...


def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    residual: Float[Tensor, "*batch N"] | None = None,
    gate: Float[Tensor, "*batch N"] | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    prenorm: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalisation of the last dimension, with its neighbours fused in.

    With s = x + residual and z = gate::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * silu(z)                 gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * silu(z)                       gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's outputs and gradients do not depend on the batch around it.

    Args:
        x: (..., N), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        weight: (N,), or (H, N) with x (..., H, N): a weight for each head. float32 or the dtype of x.
        bias: like weight.
        residual: like x, of any of the dtypes; added to x first.
        gate: like x, of any of the dtypes.
        eps: added to the mean square.
        weight_offset: added to the weight, in float32; 1.0 gives Gemma's norm.
        group_size: columns that are normalised together; all N by default. Must divide N.
        norm_before_gate: gate the output instead of the input.
        prenorm: also return s.
        out_dtype: dtype of y; that of x by default.

    Returns:
        y (..., N); with `prenorm`, (y, s), where s has the dtype of the residual (of x, without one).

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4; the gated form is Mamba-2's
    (Dao and Gu, 2024).

    Example:
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.ones(64, requires_grad=True)
        >>> y, stream = retrograd.rms_norm(x, weight, residual=torch.randn(2, 16, 64), prenorm=True)
        >>> (y.sum() + stream.sum()).backward()
        >>> weight.grad.shape
        torch.Size([64])
    """
    tensors = (x, weight, bias, residual, gate)
    static = (eps, weight_offset, group_size, norm_before_gate, out_dtype)
    if launches_directly(tensors):
        if torch.is_grad_enabled():
            y, s = _apply(*tensors, static)
        else:
            _, y, s, _ = _forward(tensors, static)
    else:
        if not all(t is None or isinstance(t, Tensor) for t in (*tensors, x)):
            raise not_a_tensor(OP, ARGUMENTS, tensors)
        y, s, _ = torch.ops.retrograd.rms_norm(*tensors, *static)
    if not prenorm:
        return y
    return y, x if residual is None else s


class _Call:
    """A checked call on one device: its spec, and how to prepare its programs for a layout of their inputs."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.spec = spec
        self.device = device
        self.arch = arch_of(device) if spec.x.dtype in KERNEL_FLOATS else None
        self.backward_runner = lru_cache(maxsize=256)(self._backward_runner)

    def forward_runner(self, keys: Keys) -> Runner | None:
        """Runs (x, weight, bias, residual, gate) -> (y, sum, rstd); None where the portable path is taken."""
        if self.arch is None:
            return None
        from . import schedule

        program = schedule.forward(self.spec, layouts(ARGUMENTS, keys), self.arch)
        return prepare(program, ARGUMENTS, ("y", "sum", "rstd"), self.arch, self.device)

    def _backward_runner(self, keys: Keys, parameters: bool) -> Runner | None:
        """Runs (dy, dsum, s, gate, weight, bias, rstd) -> (dx, dresidual, dgate, dweight, dbias), or None."""
        if self.arch is None:
            return None
        from . import schedule

        prenorm = keys[1] is not None
        program = schedule.backward(self.spec, layouts(SAVED, keys), self.arch, prenorm, parameters)
        return prepare(program, SAVED, GRADIENTS, self.arch, self.device)


class _Prepared:
    """A call with the layout of its inputs: the forward runner, and the backward runners met so far."""

    def __init__(self, call: _Call, keys: Keys) -> None:
        self.call = call
        self.spec = call.spec
        self.run = call.forward_runner(keys)
        self.backward: dict[Any, Runner | None] = {}


# The options are arguments of their own, so that `typed` tells 1 from True and from 1.0.
@lru_cache(maxsize=4096, typed=True)
def _call(params: Params, device: torch.device, *static: Any) -> _Call:
    return _Call(_spec(params, static), device)


@lru_cache(maxsize=4096, typed=True)
def _prepare(keys: Keys, *static: Any) -> _Prepared:
    x = keys[0]
    assert x is not None
    device = x[3]
    for name, key_ in zip(ARGUMENTS, keys, strict=True):
        if key_ is not None and key_[3] != device:
            raise bad_value(OP, f"device of {name}", str(key_[3]), f"{device}, the device of x")
    call = _call(tuple(None if k is None else (tuple(k[0]), k[2]) for k in keys), device, *static)
    return _Prepared(call, keys)


def _spec(params: Sequence[tuple[Sequence[int], torch.dtype] | None], static: Sequence[Any]) -> Spec:
    out_dtype = static[-1]
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise bad_type(OP, "out_dtype", out_dtype, "a torch.dtype or None")
    x, weight, bias, residual, gate = (None if p is None else Param(tuple(p[0]), dtype_name(p[1])) for p in params)
    assert x is not None
    return Spec(x, weight, bias, residual, gate, Options(*map(concrete, static)))


def _forward(tensors: Tensors, static: Static) -> tuple[_Prepared, Tensor, Tensor | None, Tensor]:
    """The prepared call, y, s (None without a residual) and rstd."""
    x, weight, bias, residual, gate = tensors
    try:
        keys = (
            key(x),  # type: ignore[arg-type]
            None if weight is None else key(weight),
            None if bias is None else key(bias),
            None if residual is None else key(residual),
            None if gate is None else key(gate),
        )
    except AttributeError:
        raise not_a_tensor(OP, ARGUMENTS, tensors) from None
    prepared = _prepare(keys, *static)
    if prepared.run is None:
        y, s, rstd = portable.forward(torch_namespace(), prepared.spec, *tensors)
        return prepared, y, s, rstd
    y, s, rstd = prepared.run(tensors)
    return prepared, y, s, rstd


def _backward(spec: Spec, run: Runner | None, saved: Tensors) -> Tensors:
    """(dx, dresidual, dgate, dweight, dbias); dresidual is dx itself where their dtypes agree."""
    dy, dsum, s, gate, weight, bias, rstd = saved
    if run is None:
        made = portable.backward(torch_namespace(), spec, dy, dsum, s, weight, bias, gate, rstd)
    else:
        made = tuple(run(saved))
    dx, dresidual, dgate, dweight, dbias = made
    if spec.shares_dresidual:
        dresidual = dx
    return dx, dresidual, dgate, dweight, dbias


class _RMSNorm(torch.autograd.Function):
    """The direct path: kernels launched without PyTorch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None,
                gate: Tensor | None, static: Static) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        ctx.prepared, y, s, rstd = _forward((x, weight, bias, residual, gate), static)
        ctx.save_for_backward(x if s is None else s, gate, weight, bias, rstd)
        ctx.set_materialize_grads(False)
        return y, s

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> Tensors:
        # Grad mode is on only where a second derivative was asked for; it is refused when it is taken.
        return _refuse_twice(ctx, dy, dsum) if torch.is_grad_enabled() else _gradients(ctx, dy, dsum)


def _gradients(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> Tensors:
    prepared: _Prepared = ctx.prepared
    if dy is None:  # only the sum was used
        spec = prepared.spec
        dy = torch.zeros((), device=prepared.call.device, dtype=y_dtype(spec)).expand(spec.x.shape)
    saved = (dy, dsum, *ctx.saved_tensors)
    needs = ctx.needs_input_grad
    parameters = needs[1] or needs[2]
    # Hooks on saved tensors (offloading, compression) may give them back in another layout, so each is looked at.
    layout = (parameters, *[None if t is None else (t.stride(), t.data_ptr() & 15) for t in saved])
    try:
        run = prepared.backward[layout]
    except KeyError:
        keys = tuple(None if t is None else key(t) for t in saved)
        run = prepared.backward[layout] = prepared.call.backward_runner(keys, parameters)
    dx, dresidual, dgate, dweight, dbias = _backward(prepared.spec, run, saved)
    return dx, dweight, dbias, dresidual, dgate, None


_refuse_twice = once_differentiable(_gradients)
# Function.apply without its look for function transforms: `launches_directly` has made sure that there are none.
_apply = super(torch.autograd.Function, _RMSNorm).apply


def y_dtype(spec: Spec) -> torch.dtype:
    """The dtype of y."""
    return DTYPES[spec.out_dtype]


# The registered operators. An operator returns no None and no tensor twice, so an absent result is an empty tensor.


@torch.library.custom_op("retrograd::rms_norm", mutates_args=())
def _rms_norm_op(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
    eps: float,
    weight_offset: float,
    group_size: int | None,
    norm_before_gate: bool,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    static = (eps, weight_offset, group_size, norm_before_gate, out_dtype)
    _, y, s, rstd = _forward((x, weight, bias, residual, gate), static)
    return y, absent(x) if s is None else s, rstd


@_rms_norm_op.register_fake
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, gate: Tensor | None,
      *static: Any) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    spec = _spec([None if t is None else (t.shape, t.dtype) for t in (x, weight, bias, residual, gate)], static)
    s = absent(x) if residual is None else x.new_empty(x.shape, dtype=residual.dtype)
    rstd = x.new_empty((spec.rows * spec.heads,), dtype=DTYPES[spec.compute_dtype])
    return x.new_empty(x.shape, dtype=y_dtype(spec)), s, rstd


@torch.library.custom_op("retrograd::rms_norm_backward", mutates_args=())
def _rms_norm_backward_op(
    dy: Tensor,
    dsum: Tensor | None,
    s: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor,
    x_dtype: torch.dtype,
    residual_dtype: torch.dtype | None,
    eps: float,
    weight_offset: float,
    group_size: int | None,
    norm_before_gate: bool,
    out_dtype: torch.dtype | None,
    parameters: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    params = _saved_params(s, weight, bias, gate, x_dtype, residual_dtype)
    call = _call(params, s.device, eps, weight_offset, group_size, norm_before_gate, out_dtype)
    saved = (dy, dsum, s, gate, weight, bias, rstd)
    run = call.backward_runner(tuple(None if t is None else key(t) for t in saved), parameters)
    dx, dresidual, dgate, dweight, dbias = _backward(call.spec, run, saved)
    if not call.spec.separate_dresidual:
        dresidual = None
    if not parameters:
        dweight = dbias = None
    results = (dx, dresidual, dgate, dweight, dbias)
    return tuple(absent(s) if t is None else t for t in results)  # type: ignore[return-value]


@_rms_norm_backward_op.register_fake
def _(dy: Tensor, dsum: Tensor | None, s: Tensor, gate: Tensor | None, weight: Tensor | None, bias: Tensor | None,
      rstd: Tensor, x_dtype: torch.dtype, residual_dtype: torch.dtype | None,
      *rest: Any) -> tuple[Tensor, ...]:  # fmt: skip
    parameters = rest[-1]

    def like(tensor: Tensor | None, wanted: bool = True) -> Tensor:
        return tensor.new_empty(tensor.shape) if tensor is not None and wanted else absent(s)

    separate = residual_dtype is not None and residual_dtype != x_dtype
    return (
        s.new_empty(s.shape, dtype=x_dtype),
        s.new_empty(s.shape, dtype=residual_dtype) if separate else absent(s),
        like(gate),
        like(weight, parameters),
        like(bias, parameters),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, residual, gate, *static = inputs
    _, s, rstd = output
    ctx.save_for_backward(x if residual is None else s, gate, weight, bias, rstd)
    ctx.rest = (x.dtype, None if residual is None else residual.dtype, *static)
    ctx.prenorm = residual is not None


def _backward_through_op(ctx: Any, dy: Tensor, dsum: Tensor, _drstd: Tensor) -> tuple[Tensor | None, ...]:
    parameters = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    _, gate, weight, bias, _ = ctx.saved_tensors
    dx, dresidual, dgate, dweight, dbias = torch.ops.retrograd.rms_norm_backward(
        dy, dsum if ctx.prenorm else None, *ctx.saved_tensors, *ctx.rest, parameters
    )
    x_dtype, residual_dtype = ctx.rest[:2]
    return (
        dx,
        dweight if weight is not None and parameters else None,
        dbias if bias is not None and parameters else None,
        None if not ctx.prenorm else dx if residual_dtype == x_dtype else dresidual,
        dgate if gate is not None else None,
        *(None for _ in ctx.rest[2:]),
    )


_rms_norm_op.register_autograd(_backward_through_op, setup_context=_setup_context)


def _saved_params(
    s: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gate: Tensor | None,
    x_dtype: torch.dtype,
    residual_dtype: torch.dtype | None,
) -> Params:
    """Shapes and dtypes of (x, weight, bias, residual, gate) from what the backward pass has."""
    shape = tuple(s.shape)
    weight_, bias_, gate_ = (None if t is None else (tuple(t.shape), t.dtype) for t in (weight, bias, gate))
    return (shape, x_dtype), weight_, bias_, None if residual_dtype is None else (shape, residual_dtype), gate_
