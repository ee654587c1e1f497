"""The declaration of row_butterfly."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Op
from retrograd.core.spec import CallSpec, Param, Pass


@dataclass(frozen=True)
class Spec(CallSpec):
    """A number for each row above and below it: x[b, n] + half[b] and x[b, n] - half[b], computed in float32."""

    x: Param = required("B N", *FLOATS, doc="(B, N), float32, bfloat16, float16 or float64, any strides.")
    half: Param = required("B", "compute_dtype", "x", doc="(B,), float32 or the dtype of x.")

    op: ClassVar = "row_butterfly"
    letters: ClassVar = {"B": Letter("batch"), "N": Letter("columns")}
    results: ClassVar = (Result("above", "B N", "x"), Result("below", "B N", "x"))

    RETURNS: ClassVar = "above and below, each (B, N), in the dtype of x."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, half = torch.ones(1, 2), torch.tensor([3.0], requires_grad=True)
        >>> above, below = retrograd.row_butterfly(x, half)
        >>> below.sum().backward()
        >>> above.tolist(), below.tolist(), half.grad.tolist()
        ([[4.0, 4.0]], [[-2.0, -2.0]], [-2.0])
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import row_butterfly
        >>> above, below = row_butterfly(jnp.ones((1, 2)), jnp.array([3.0]))
        >>> above.tolist(), below.tolist()
        ([[4.0, 4.0]], [[-2.0, -2.0]])
        >>> jax.grad(lambda half: row_butterfly(jnp.ones((1, 2)), half)[1].sum())(jnp.ones(1))
        Array([-2.], dtype=float32)
        """

    def flops(self, which: Pass) -> int:
        """Additions and multiplications of a pass."""
        return (2 if which == "fwd" else 3) * prod(self.x.shape)


OP = Op(Spec, __package__)
