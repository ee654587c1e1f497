"""The declarations of `causal_conv1d_update`, one or a few steps of generation, and of the same in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from retrograd.core.declaration import Result, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Function
from retrograd.core.spec import Param
from retrograd.core.xp import Namespace

from .op import ACTIVATIONS, Convolution


@dataclass(frozen=True)
class Step(Convolution):
    """One or a few steps of generation: `causal_conv1d` continued from a state, with its gradients.

    The results are bitwise equal to those of the same steps in a longer sequence; in JAX without a kernel, only as far
    as XLA compiles both alike.
    """

    x: Param = required("B D | B T D", *FLOATS, doc="(B, D), or (B, T, D) for T steps.")
    state: Param = required(
        "B D W-1",
        "x",
        doc="(B, D, W - 1) in the dtype of x: the previous inputs, oldest first; not modified.",
    )
    weight: Param = required("D W", "compute_dtype", "x", doc="(D, W), as in `causal_conv1d`.")
    bias: Param | None = optional("D", "compute_dtype", "x", positional=True, doc="(D,), as in `causal_conv1d`.")
    activation: str | None = option("str?", None, choices=ACTIVATIONS, doc='"silu" or None.')

    op: ClassVar = "causal_conv1d_update"
    results: ClassVar[tuple[Result, ...]] = (Result("y", "B D | B T D", "x"), Result("new_state", "B D W-1", "x"))

    RETURNS: ClassVar = "(y, new_state): y has the shape of x."
    SOURCE: ClassVar = ""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, state, weight = torch.randn(2, 64), torch.zeros(2, 64, 3), torch.randn(64, 4)
        >>> y, state = retrograd.causal_conv1d_update(x, state, weight)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 3]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import causal_conv1d_update
        >>> y, state = causal_conv1d_update(jnp.ones((2, 64)), jnp.zeros((2, 64, 3)), jnp.ones((64, 4)))
        >>> y.shape, state.shape
        ((2, 64), (2, 64, 3))
        """


@dataclass(frozen=True)
class StepInPlace(Step):
    """`causal_conv1d_update` whose state may be overwritten, in PyTorch (`torch_step.py`); its kernel does so.

    The result is that of the kernel, which takes a single step.
    """

    op: ClassVar = "causal_conv1d_update_"
    results: ClassVar = (Result("y", "B D", "x"),)


def update(
    xp: Namespace, call: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """(y, new_state) of a framework's call of the op, from checked arrays; x may be a single step."""
    x = arrays["x"]
    single = x.ndim == 2
    arguments = {
        "x": x[:, None] if single else x,
        "weight": arrays["weight"],
        "bias": arrays["bias"],
        "initial_state": arrays["state"],
        "cu_seqlens": None,
    }
    y, new_state = call(arguments, {"activation": options["activation"], "return_final_state": True})
    return (y[:, 0] if single else y), new_state


CAUSAL_CONV1D_UPDATE = Function(Step, update)
