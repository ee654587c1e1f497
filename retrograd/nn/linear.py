"""Linear layers whose products may have the same bits in any number of rows."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import retrograd
from retrograd.core.spec import autocast_ranks
from retrograd.core.torch.autocast import autocasts_anywhere, cast
from retrograd.core.torch.launch import launches_directly
from retrograd.ops.linear.op import Spec

from .exact import is_exact

AUTOCAST = autocast_ranks(Spec)


class _ExactProduct(torch.autograd.Function):
    """`retrograd.linear`, but gradients are PyTorch's products, which are fast and the same in every run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return retrograd.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        rows = _rows(dy)
        return (
            dy @ weight if needs[0] else None,
            rows.mT @ _rows(x) if needs[1] else None,
            rows.sum(0) if needs[2] else None,
        )


def _rows(x: Tensor) -> Tensor:
    """(..., N) -> (rows, N)."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


class Linear(nn.Linear):
    """`torch.nn.Linear`, with `retrograd.linear` where it is exact.

    Attributes:
        exact: whether a row has the same bits in any number of rows, as a step of generation then has those of
            training; if not, products are PyTorch's own, as those of gradients always are. None is where it costs
            nothing, see `LanguageModel`.

    Example:
        >>> import torch
        >>> from retrograd.nn import Linear
        >>> layer = Linear(64, 32)
        >>> layer.exact = True
        >>> x = torch.randn(10, 64)
        >>> torch.equal(layer(x)[3], layer(x[3]))
        True
    """

    exact: bool | None = False

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same, with another bias or none."""
        if not is_exact(self.exact, x):
            return F.linear(x, self.weight, bias)
        given: dict[str, Any] = {"x": x, "weight": self.weight, "bias": bias}
        if autocasts_anywhere():
            given = cast(given, AUTOCAST)
        tensors = tuple(given.values())
        if torch.is_grad_enabled() and (torch.compiler.is_compiling() or launches_directly(tensors)):
            return _ExactProduct.apply(*tensors)
        return retrograd.linear(*tensors)
