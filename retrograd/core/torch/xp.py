"""PyTorch's functions for portable paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from ..xp import Namespace, rows_of
from .products import row_products

WORD = 2**32 - 1


def torch_namespace() -> Namespace:
    """PyTorch's functions."""
    return Namespace(
        astype=lambda x, dtype: x.to(getattr(torch, dtype)),
        reshape=lambda x, shape: x.reshape(shape),
        # PyTorch calls an empty tensor contiguous whatever its strides.
        dense=lambda x: x.contiguous() if x.numel() else x.new_empty(x.shape),
        mean=lambda x: _row_sums(x)[..., None] / x.shape[-1],
        sqrt=torch.sqrt,
        silu=lambda x: x * _sigmoid(x),
        sigmoid=_sigmoid,
        sum_to=lambda x, shape: x.reshape(rows_of(x.shape, shape), *shape).sum(0),
        sum=_sum,
        arange=lambda like, size: torch.arange(size, device=like.device),
        clip=lambda x, low, high: x.clamp(low, high),
        cumsum=lambda x, axis, reverse: x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis),
        matmul=_matmul,
        row_products=row_products,
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
        multiply=_multiply,
        conj=lambda x: x.conj().resolve_conj(),
        complex=torch.complex,
        wide=lambda x: x.double(),
        narrow=_narrow,
        moveaxis=torch.moveaxis,
        broadcast_to=lambda x, shape: x.expand(shape),
        concat=lambda xs, axis: torch.cat(list(xs), axis),
        stack=lambda xs, axis: torch.stack(list(xs), axis),
        zeros=lambda like, shape, dtype: torch.zeros(shape, dtype=getattr(torch, dtype), device=like.device),
        scan=_scan,
        recurrence=_recurrence,
    )


@cache
def differentiable_torch_namespace() -> Namespace:
    """PyTorch's functions, in forms that autograd, `torch.vmap` and forward mode can differentiate everywhere."""
    return replace(
        torch_namespace(),
        silu=torch.nn.functional.silu,
        sigmoid=torch.sigmoid,
        row_products=lambda a, b: torch.matmul(a, b.mT),
        softplus=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        recurrence=_recurrence_out_of_place,
    )


def _scan(step: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool) -> Any:
    steps = range(xs[0].shape[0])
    outputs = []
    for i in reversed(steps) if reverse else steps:
        carry, y = step(carry, tuple(x[i] for x in xs))
        outputs.append(y)
    if reverse:
        outputs.reverse()
    return carry, tuple(torch.stack(column) for column in zip(*outputs, strict=True))


def _recurrence(decay: Any, added: Any, h: Any, reverse: bool) -> Any:
    states = h.new_empty((decay.shape[0] + 1, *h.shape))
    # Not addcmul: it might round the elements after the last whole vector differently.
    steps = list(zip(decay.unbind(), added.unbind(), states.unbind(), states[1:].unbind(), strict=False))
    states[-1 if reverse else 0] = h
    for decay_t, added_t, before, after in reversed(steps) if reverse else steps:
        source, target = (after, before) if reverse else (before, after)
        if decay_t.is_complex():
            target.copy_(_multiply(decay_t, source))
        else:
            torch.mul(decay_t, source, out=target)
        target += added_t
    return states


def _recurrence_out_of_place(decay: Any, added: Any, h: Any, reverse: bool) -> Any:
    states = [h]
    steps = list(zip(decay.unbind(), added.unbind(), strict=True))
    for decay_t, added_t in reversed(steps) if reverse else steps:
        states.append(decay_t * states[-1] + added_t)
    return torch.stack(states[::-1] if reverse else states)


def _multiply(x: Any, y: Any) -> Any:
    if not (x.is_complex() and y.is_complex()):
        return x * y
    # On a CPU the bits of a complex product depend on its position in the array; those of real products do not.
    return torch.complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _matmul(a: Any, b: Any) -> Any:
    """The product, whose bits on a CPU depend neither on the layout nor on the other matrices of the batch.

    A single row is doubled, since a vector function may compute it with other bits. Columns are padded to whole cache
    lines: the bits of other matrices depend on their position in memory. Transposed matrices are copied: PyTorch hands
    them to the BLAS as they lie, and a product of float64 has other bits with a transposed factor.
    """

    rows, columns = a.shape[-2], b.shape[-1]
    a = torch.cat([a, a], -2) if rows == 1 else a
    b = torch.nn.functional.pad(b, (0, -columns % 16)) if columns % 16 else b
    return torch.matmul(a.contiguous(), b.contiguous())[..., :rows, :columns]


def _narrow(wide: Any, dtype: str) -> tuple[Any, Any]:
    rounded = wide.to(getattr(torch, dtype))
    return rounded, torch.where(rounded.isfinite(), wide - rounded, 0).to(rounded.dtype)


def _sigmoid(x: Any) -> Any:
    # On a CPU, torch.sigmoid computes the elements after the last whole vector differently, so the last bit depends on
    # an element's position; that of exp does not.
    return 1 / (1 + (-x).exp())


def _sum(x: Any, axis: int | tuple[int, ...]) -> Any:
    """Sums; over one axis, in an order independent of the layout, of the other axes' sizes and of the thread count."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    if len(axes) > 1:
        return x.sum(axes)
    if axes[0] in (-1, x.dim() - 1):
        return _row_sums(x)
    terms, odd = x.movedim(axes[0], 0), None
    while (size := len(terms)) > 1:
        if size % 2:
            odd = terms[-1] if odd is None else odd + terms[-1]
        terms = terms[: size // 2] + terms[size // 2 : size // 2 * 2]
    return terms.sum(0) if odd is None else terms[0] + odd


def _row_sums(x: Any) -> Any:
    """Sums over the last axis, of dense rows: a CPU sums each in a fixed order, which other layouts change."""
    x = x.contiguous()
    if x.numel() and x.numel() == x.shape[-1]:
        # A single long row is split among the threads; with two rows, each is summed by one thread.
        return x.reshape(1, -1).expand(2, -1).sum(-1)[0].reshape(x.shape[:-1])
    return x.sum(-1)
