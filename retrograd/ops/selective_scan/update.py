"""The declaration of `selective_state_update`: `selective_scan` of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from retrograd.core.declaration import Result, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Function
from retrograd.core.spec import Param
from retrograd.core.xp import Namespace

from .op import D_DOC, DT_BIAS_DOC, DT_SOFTPLUS_DOC, FLOAT_OR_COMPLEX, Common

OF_STEPS = ("x", "dt", "B", "C", "z")


@dataclass(frozen=True)
class Step(Common):
    """One step of `selective_scan`, for generation: (y, the new state). The old state is not modified.

    The results are bitwise equal to those of the same step in a longer sequence (in JAX without a kernel, only as far
    as XLA compiles both alike), and the gradients are those of `selective_scan`. With x in float64, float64 and
    complex128 replace float32 and complex64.
    """

    state: Param = required(
        "S D N",
        "state_dtype",
        kinds=FLOAT_OR_COMPLEX,
        doc="""(B, D, N), float32 (complex64 for complex A): zeros at first, or a final state of
        `selective_scan`.""",
    )
    x: Param = required("B D", *FLOATS, doc="(B, D), float32, bfloat16, float16 or float64.")
    dt: Param = required("B D", "x", "compute_dtype", doc="(B, D), like x or float32.")
    A: Param = required(
        "D N",
        "compute_dtype",
        "pair_dtype",
        kinds=FLOAT_OR_COMPLEX,
        doc="(D, N), float32, or complex64 as in `selective_scan`; at most 256 states.",
    )
    B: Param = required(
        "B N | B G N",
        "B_dtypes",
        kinds=FLOAT_OR_COMPLEX,
        doc="""(B, N), or (B, G, N) where channel d uses group d // (D / G); like x or float32, complex64 for
        complex A.""",
    )
    C: Param = required(
        "B N | B K N",
        "C_dtypes",
        kinds=FLOAT_OR_COMPLEX,
        doc="like B, but not necessarily in the same form.",
    )
    D: Param | None = optional("D", "compute_dtype", doc=D_DOC)
    z: Param | None = optional("B D", "x", "compute_dtype", doc="(B, D), like x or float32: a gate.")
    dt_bias: Param | None = optional("D", "compute_dtype", doc=DT_BIAS_DOC)
    dt_softplus: bool = option("bool", False, doc=DT_SOFTPLUS_DOC)

    op: ClassVar = "selective_state_update"
    results: ClassVar = (
        Result("y", "B D", "x"),
        Result("new_state", "S D N", "state_dtype", kinds=FLOAT_OR_COMPLEX),
    )

    RETURNS: ClassVar = "y (B, D) in the dtype of x, and the new state in the dtype of the old one."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 64, 16), -torch.rand(64, 16)
        >>> x, dt, B, C = torch.randn(2, 64), torch.randn(2, 64), torch.randn(2, 16), torch.randn(2, 16)
        >>> y, state = retrograd.selective_state_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 16]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import selective_state_update
        >>> x, B = jnp.ones((2, 64)), jnp.ones((2, 16))
        >>> y, state = selective_state_update(jnp.zeros((2, 64, 16)), x, x, -jnp.ones((64, 16)), B, B)
        >>> y.shape, state.shape
        ((2, 64), (2, 64, 16))
        """


def update(
    xp: Namespace, call: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """(y, the new state) of a framework's `bind(OP)`, from checked arrays without a dimension of time."""
    arguments = {
        name: array[:, None] if name in OF_STEPS and array is not None else array for name, array in arrays.items()
    }
    state = arguments.pop("state")
    y, state = call({**arguments, "initial_state": state, "cu_seqlens": None}, {**options, "return_final_state": True})
    return y[:, 0], state


SELECTIVE_STATE_UPDATE = Function(Step, update)
