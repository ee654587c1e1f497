"""The declaration of linear: its arguments, results, and the rules that letters cannot express."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Fold, Param, Pass, Size

PARAMETERS = ("weight", "bias")


@dataclass(frozen=True)
class Spec(CallSpec):
    """Rows times the transpose of a matrix of weights: y = x weight^T + bias.

    ::

        y[m, n] = sum over k of x[m, k] weight[n, k] + bias[n]

    The bits of an element of y depend on its row of x, its row of the weight and its bias alone, not on the number of
    rows: products are added in float32 along k, in order and in one sum, the bias last. So a step of generation has the
    bits of training. The same holds for dx. All gradients are bitwise reproducible.
    """

    x: Param = required(
        "*batch K",
        *FLOATS,
        doc="(..., K), float32, bfloat16 or float16, any strides. float64 runs on the portable path.",
    )
    weight: Param = required("N K", "x", doc="(N, K), the dtype of x, any strides.")
    bias: Param | None = optional("N", "x", positional=True, doc="(N,), the dtype of x.")

    op: ClassVar = "linear"
    independent: ClassVar = ("batch", "N")
    letters: ClassVar = {"N": Letter("outputs"), "K": Letter("inputs")}
    results: ClassVar = (Result("y", "*batch N", "x"),)
    autocast: ClassVar = ("x", *PARAMETERS)
    casts_parameters: ClassVar = True

    N = Size("N")
    K = Size("K")

    RETURNS: ClassVar = "y (..., N), in the dtype of x."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, weight = torch.randn(2, 16, 64), torch.randn(32, 64, requires_grad=True)
        >>> y = retrograd.linear(x, weight)
        >>> y.sum().backward()
        >>> y.shape, weight.grad.shape
        (torch.Size([2, 16, 32]), torch.Size([32, 64]))
        >>> torch.equal(retrograd.linear(x[:, :1], weight), y[:, :1])
        True
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import linear
        >>> x, weight = jnp.ones((2, 16, 64)), jnp.ones((32, 64))
        >>> dweight = jax.grad(lambda weight: linear(x, weight).sum())(weight)
        >>> dweight.shape
        (32, 64)
        """

    @property
    def rows(self) -> int:
        """Rows of x, M."""
        return math.prod(self.x.shape[:-1])

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """dy; the weight for dx, x for the gradient of the weight."""
        of_x = ("weight",) if "x" in wanted else ()
        of_weight = ("x",) if "weight" in wanted else ()
        return (*self.gradients_in(), *of_weight, *of_x)

    def folds(self, size: int) -> Iterator[Fold]:
        """The calls as more rows, if they share the parameters."""
        yield self.folded({"x": 0, "y": 0}, size)

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass."""
        return (2 if which == "fwd" else 4) * self.rows * self.N * self.K


IMPLEMENTATIONS = (
    Implementation(f"{__package__}.hopper", takes=names("x weight bias")),
    Implementation(f"{__package__}.triton", takes=names("x weight bias")),
)
OP = Op(Spec, __package__, IMPLEMENTATIONS)
