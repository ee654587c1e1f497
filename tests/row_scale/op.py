"""The declaration of row_scale."""

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
    """Each row times a number of its own: y[b, n] = x[b, n] * scale[b], computed in float32."""

    x: Param = required("B N", *FLOATS, doc="(B, N), float32, bfloat16, float16 or float64, any strides.")
    scale: Param = required("B", "compute_dtype", "x", doc="(B,), float32 or the dtype of x.")

    op: ClassVar = "row_scale"
    letters: ClassVar = {"B": Letter("batch"), "N": Letter("columns")}
    results: ClassVar = (Result("y", "B N", "x"),)

    RETURNS: ClassVar = "y (B, N), in the dtype of x."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, scale = torch.ones(2, 3), torch.tensor([1.0, 2.0], requires_grad=True)
        >>> retrograd.row_scale(x, scale).sum().backward()
        >>> scale.grad
        tensor([3., 3.])
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import row_scale
        >>> jax.grad(lambda scale: row_scale(jnp.ones((2, 3)), scale).sum())(jnp.ones(2))
        Array([3., 3.], dtype=float32)
        """

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass."""
        return (1 if which == "fwd" else 3) * prod(self.x.shape)


OP = Op(Spec, __package__)
