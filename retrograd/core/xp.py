"""The few array functions that portable paths use, for both PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

WORD = 2**32 - 1


@dataclass(frozen=True)
class Namespace:
    """Array functions of one framework. Reductions are over the last axis and keep it, unless stated otherwise."""

    astype: Callable[[Any, str], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    dense: Callable[[Any], Any]  # row-major contiguous, as kernels write it and as shape inference promises
    mean: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    silu: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    sum_to: Callable[[Any, tuple[int, ...]], Any]  # sums over leading axes; the trailing shape remains
    sum: Callable[[Any, int | tuple[int, ...]], Any]  # over axes, which are removed
    arange: Callable[[Any, int], Any]  # 0 to size - 1, on the device of the first argument
    clip: Callable[[Any, int, int], Any]
    cumsum: Callable[[Any, int, bool], Any]  # over an axis; from its end if the last argument is True
    matmul: Callable[[Any, Any], Any]  # of matrices in the last two axes; other axes broadcast
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    abs: Callable[[Any], Any]
    max: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    # word(x): integers as words of 32 bits, for `^`, `&`, `>>` by fewer than 32 bits, and `mul_wide`.
    # mul_wide(word, n): the high and the low word of its product with an int of 32 bits.
    # add_word(word, n): the sum, without what exceeds 32 bits.
    word: Callable[[Any], Any]
    mul_wide: Callable[[Any, int], tuple[Any, Any]]
    add_word: Callable[[Any, int], Any]
    softplus: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]
    multiply: Callable[[Any, Any], Any]  # where a factor may be complex; for products of real numbers use `*`
    conj: Callable[[Any], Any]
    complex: Callable[[Any, Any], Any]  # from real and imaginary part; `.real` and `.imag` return them
    # wide(x): real x in a form for which `*`, `+` and `-` keep at least 10 more bits; float64 is unchanged.
    # narrow(wide, dtype): the rounded value, and the rounding error, or 0 where the rounded value is not finite.
    wide: Callable[[Any], Any]
    narrow: Callable[[Any, str], tuple[Any, Any]]
    moveaxis: Callable[[Any, int, int], Any]
    broadcast_to: Callable[[Any, tuple[int, ...]], Any]
    concat: Callable[[Sequence[Any], int], Any]
    stack: Callable[[Sequence[Any], int], Any]
    zeros: Callable[[Any, tuple[int, ...], str], Any]  # on the device of the first argument
    # scan(step, carry, xs, reverse): carry, y = step(carry, x) over the leading axis of every array in the tuple xs.
    # Returns the last carry, and the y stacked, each at the index of its x. Carries and y are tuples.
    scan: Callable[[Callable[[Any, Any], Any], Any, Any, bool], Any]
    # recurrence(decay, added, h, reverse): h = decay[t] * h + added[t] along the leading axis. Returns every h,
    # including the initial one, which comes first, or last if reverse.
    recurrence: Callable[[Any, Any, Any, bool], Any]


def aligned(x: Any, like: Any) -> Any:
    """x with as many axes as `like`, those before its own of size 1: JAX can be told to refuse to add them itself."""
    return x[(None,) * (len(like.shape) - len(x.shape))]


def silu_grad(xp: Namespace, z: Any) -> Any:
    """The derivative of silu."""
    sigmoid = xp.sigmoid(z)
    return sigmoid * (1 + z * (1 - sigmoid))


def torch_namespace() -> Namespace:
    """PyTorch's functions."""
    import torch

    return Namespace(
        astype=lambda x, dtype: x.to(getattr(torch, dtype)),
        reshape=lambda x, shape: x.reshape(shape),
        # PyTorch calls an empty tensor contiguous whatever its strides.
        dense=lambda x: x.contiguous() if x.numel() else x.new_empty(x.shape),
        mean=lambda x: _torch_row_sums(x)[..., None] / x.shape[-1],
        sqrt=torch.sqrt,
        silu=lambda x: x * _torch_sigmoid(x),
        sigmoid=_torch_sigmoid,
        sum_to=lambda x, shape: x.reshape(_rows(x.shape, shape), *shape).sum(0),
        sum=_torch_sum,
        arange=lambda like, size: torch.arange(size, device=like.device),
        clip=lambda x, low, high: x.clamp(low, high),
        cumsum=lambda x, axis, reverse: x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis),
        matmul=_torch_matmul,
        exp=torch.exp,
        log=torch.log,
        tanh=torch.tanh,
        abs=torch.abs,
        max=lambda x: x.amax(-1, keepdim=True),
        maximum=torch.maximum,
        word=lambda x: x.long() & WORD,
        mul_wide=lambda x, n: ((x * n) >> 32 & WORD, (x * n) & WORD),
        add_word=lambda x, n: (x + n) & WORD,
        softplus=lambda x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())),
        where=torch.where,
        multiply=_torch_multiply,
        conj=lambda x: x.conj().resolve_conj(),
        complex=torch.complex,
        wide=lambda x: x.double(),
        narrow=_torch_narrow,
        moveaxis=torch.moveaxis,
        broadcast_to=lambda x, shape: x.expand(shape),
        concat=lambda xs, axis: torch.cat(list(xs), axis),
        stack=lambda xs, axis: torch.stack(list(xs), axis),
        zeros=lambda like, shape, dtype: torch.zeros(shape, dtype=getattr(torch, dtype), device=like.device),
        scan=_torch_scan,
        recurrence=_torch_recurrence,
    )


@cache
def differentiable_torch_namespace() -> Namespace:
    """PyTorch's functions, in forms that autograd, `torch.vmap` and forward mode can differentiate everywhere."""
    import torch

    return replace(
        torch_namespace(),
        silu=torch.nn.functional.silu,
        sigmoid=torch.sigmoid,
        softplus=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        recurrence=_torch_recurrence_out_of_place,
    )


def _torch_scan(step: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool) -> Any:
    import torch

    steps = range(xs[0].shape[0])
    outputs = []
    for i in reversed(steps) if reverse else steps:
        carry, y = step(carry, tuple(x[i] for x in xs))
        outputs.append(y)
    if reverse:
        outputs.reverse()
    return carry, tuple(torch.stack(column) for column in zip(*outputs, strict=True))


def _torch_recurrence(decay: Any, added: Any, h: Any, reverse: bool) -> Any:
    import torch

    states = h.new_empty((decay.shape[0] + 1, *h.shape))
    # Not addcmul: it might round the elements after the last whole vector differently.
    steps = list(zip(decay.unbind(), added.unbind(), states.unbind(), states[1:].unbind(), strict=False))
    states[-1 if reverse else 0] = h
    for decay_t, added_t, before, after in reversed(steps) if reverse else steps:
        source, target = (after, before) if reverse else (before, after)
        if decay_t.is_complex():
            target.copy_(_torch_multiply(decay_t, source))
        else:
            torch.mul(decay_t, source, out=target)
        target += added_t
    return states


def _torch_recurrence_out_of_place(decay: Any, added: Any, h: Any, reverse: bool) -> Any:
    import torch

    states = [h]
    steps = list(zip(decay.unbind(), added.unbind(), strict=True))
    for decay_t, added_t in reversed(steps) if reverse else steps:
        states.append(decay_t * states[-1] + added_t)
    return torch.stack(states[::-1] if reverse else states)


def _torch_multiply(x: Any, y: Any) -> Any:
    import torch

    if not (x.is_complex() and y.is_complex()):
        return x * y
    # On a CPU the bits of a complex product depend on its position in the array; those of real products do not.
    return torch.complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _torch_matmul(a: Any, b: Any) -> Any:
    """The product, whose bits on a CPU depend neither on the layout nor on the other matrices of the batch.

    A single row is doubled, since a vector function may compute it with other bits. Columns are padded to whole cache
    lines: the bits of other matrices depend on their position in memory. Transposed matrices are copied: PyTorch hands
    them to the BLAS as they lie, and a product of float64 has other bits with a transposed factor.
    """
    import torch

    rows, columns = a.shape[-2], b.shape[-1]
    a = torch.cat([a, a], -2) if rows == 1 else a
    b = torch.nn.functional.pad(b, (0, -columns % 16)) if columns % 16 else b
    return torch.matmul(a.contiguous(), b.contiguous())[..., :rows, :columns]


def _torch_narrow(wide: Any, dtype: str) -> tuple[Any, Any]:
    import torch

    rounded = wide.to(getattr(torch, dtype))
    return rounded, torch.where(rounded.isfinite(), wide - rounded, 0).to(rounded.dtype)


def _torch_sigmoid(x: Any) -> Any:
    # On a CPU, torch.sigmoid computes the elements after the last whole vector differently, so the last bit depends on
    # an element's position; that of exp does not.
    return 1 / (1 + (-x).exp())


def _torch_sum(x: Any, axis: int | tuple[int, ...]) -> Any:
    """Sums; over one axis, in an order independent of the layout, of the other axes' sizes and of the thread count."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    if len(axes) > 1:
        return x.sum(axes)
    if axes[0] in (-1, x.dim() - 1):
        return _torch_row_sums(x)
    terms, odd = x.movedim(axes[0], 0), None
    while (size := len(terms)) > 1:
        if size % 2:
            odd = terms[-1] if odd is None else odd + terms[-1]
        terms = terms[: size // 2] + terms[size // 2 : size // 2 * 2]
    return terms.sum(0) if odd is None else terms[0] + odd


def _torch_row_sums(x: Any) -> Any:
    """Sums over the last axis, of dense rows: a CPU sums each in a fixed order, which other layouts change."""
    x = x.contiguous()
    if x.numel() and x.numel() == x.shape[-1]:
        # A single long row is split among the threads; with two rows, each is summed by one thread.
        return x.reshape(1, -1).expand(2, -1).sum(-1)[0].reshape(x.shape[:-1])
    return x.sum(-1)


@cache
def jax_namespace() -> Namespace:
    """JAX's functions."""
    import jax
    import jax.numpy as jnp

    from .jax.pair import Pair
    from .jax.sharding import vary_over, varying

    return Namespace(
        astype=lambda x, dtype: x.astype(dtype),
        reshape=jnp.reshape,
        dense=lambda x: x,
        mean=lambda x: jnp.mean(x, axis=-1, keepdims=True),
        sqrt=jnp.sqrt,
        silu=jax.nn.silu,
        sigmoid=jax.nn.sigmoid,
        sum_to=lambda x, shape: x.reshape(_rows(x.shape, shape), *shape).sum(0),
        sum=lambda x, axis: jnp.sum(x, axis=axis),
        arange=lambda like, size: jnp.arange(size),
        clip=jnp.clip,
        cumsum=lambda x, axis, reverse: jax.lax.cumsum(x, axis % x.ndim, reverse=reverse),
        matmul=lambda a, b: jnp.matmul(a, b, precision="highest"),
        exp=jnp.exp,
        log=jnp.log,
        tanh=jnp.tanh,
        abs=jnp.abs,
        max=lambda x: jnp.max(x, axis=-1, keepdims=True),
        maximum=jnp.maximum,
        word=lambda x: x.astype("uint32"),
        mul_wide=_jax_mul_wide,
        add_word=lambda x, n: x + jnp.uint32(n),
        softplus=jax.nn.softplus,
        where=jnp.where,
        multiply=_jax_multiply,
        conj=jnp.conj,
        complex=jax.lax.complex,
        wide=lambda x: Pair(x, jnp.zeros_like(x)),
        narrow=_jax_narrow,
        moveaxis=jnp.moveaxis,
        broadcast_to=jnp.broadcast_to,
        concat=lambda xs, axis: jnp.concatenate(list(xs), axis),
        stack=lambda xs, axis: jnp.stack(list(xs), axis),
        zeros=lambda like, shape, dtype: vary_over(varying(like), jnp.zeros(shape, dtype)),
        scan=lambda step, carry, xs, reverse: jax.lax.scan(step, carry, xs, reverse=reverse),
        recurrence=_jax_recurrence,
    )


def _jax_multiply(x: Any, y: Any) -> Any:
    """The product, with a cast of a real factor to complex, which JAX can be told to refuse to add itself."""
    dtype = np.result_type(x.dtype, y.dtype)
    return x.astype(dtype) * y.astype(dtype)


def _jax_mul_wide(x: Any, n: int) -> tuple[Any, Any]:
    """JAX has no integers of 64 bits by default: products of 16 bits by 16."""
    import jax.numpy as jnp

    high, low = jnp.uint32(n >> 16), jnp.uint32(n & 0xFFFF)
    x_high, x_low = x >> 16, x & 0xFFFF
    lowest = x_low * low
    middle = x_high * low + (lowest >> 16)  # below 2^32
    other = x_low * high + (middle & 0xFFFF)
    return x_high * high + (middle >> 16) + (other >> 16), x * jnp.uint32(n)


def _jax_narrow(wide: Any, dtype: str) -> tuple[Any, Any]:
    import jax.numpy as jnp

    return wide.high, jnp.where(jnp.isfinite(wide.high), wide.low, 0)


def _jax_recurrence(decay: Any, added: Any, h: Any, reverse: bool) -> Any:
    import jax
    import jax.numpy as jnp

    def step(h: Any, x: Any) -> Any:
        h = x[0] * h + x[1]
        return h, h

    _, states = jax.lax.scan(step, h, (decay, added), reverse=reverse)
    return jnp.concatenate([states, h[None]] if reverse else [h[None], states])


def _rows(shape: tuple[int, ...], trailing: tuple[int, ...]) -> int:
    return prod(shape[: len(shape) - len(trailing)])
