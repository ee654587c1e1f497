"""The declaration of causal_conv1d: its arguments, options, results, and the rules that letters cannot express."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, boundaries, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_shape
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Param, Pass, Size, known

ACTIVATIONS = (None, "silu")
MAX_T = 2**31 - 2**18  # steps are counted in int32, and the last tile may end past them


class Convolution(CallSpec):
    """What `causal_conv1d` and `causal_conv1d_update` share: calls that filter x along time."""

    x: Param
    activation: str | None

    autocast: ClassVar = ("x",)
    elsewhere: ClassVar = {
        "conv_state": "initial_state",
        "initial_states": "initial_state",
        "return_final_states": "return_final_state",
        "seq_idx": "cu_seqlens, where sequences begin and end",
    }
    independent: ClassVar = ("B", "D")
    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "D": Letter("channels"),
        "W": Letter("width", 1, 64),
    }

    batch = Size("B")
    time = Size("T", 1)  # of all packed sequences together
    channels = Size("D")
    width = Size("W")

    @property
    def silu(self) -> bool:
        """Whether the activation is silu."""
        return self.activation == "silu"

    def check(self) -> None:
        """Raise for more steps than the kernels can count."""
        if known(self.time) and self.time > MAX_T:
            raise bad_shape(self.op, "x", self.x.shape, f"at most {MAX_T} steps of time")


@dataclass(frozen=True)
class Spec(Convolution):
    """Depthwise causal convolution along time: each channel has a filter of its own over its last W inputs.

    ::

        y[t] = act(bias + sum over k of weight[:, k] * x[t - (W - 1) + k])

    weight[:, W - 1] belongs to the newest input. Sums are taken in float32, in the order of k. All gradients are
    bitwise reproducible; a row's results and gradients depend neither on its batch nor on what it is packed with.
    """

    x: Param = required(
        "B T D",
        *FLOATS,
        doc="""(B, T, D), float32, bfloat16 or float16, any strides, such as those of a transposed (B, D, T) array.
        float64 runs on the portable path.""",
    )
    weight: Param = required(
        "D W",
        "compute_dtype",
        "x",
        doc="(D, W), float32 or the dtype of x. Kernels run for W of 2 to 8, the portable path for 1 to 64.",
    )
    bias: Param | None = optional("D", "compute_dtype", "x", positional=True, doc="(D,), float32 or the dtype of x.")
    initial_state: Param | None = optional(
        "S D W-1",
        "x",
        doc="(B, D, W - 1) in the dtype of x: the inputs before the first step, oldest first; zeros by default.",
    )
    cu_seqlens: Param | None = boundaries("x", "States are then (S, D, W - 1).")
    activation: str | None = option("str?", None, choices=ACTIVATIONS, doc='"silu" or None.')
    return_final_state: bool = option("bool", False, doc="also return the last W - 1 inputs, to continue from.")

    op: ClassVar = "causal_conv1d"
    divides_time: ClassVar = True
    letters: ClassVar = {**Convolution.letters, "S": Letter("sequences")}
    results: ClassVar = (
        Result("y", "B T D", "x"),
        Result("final_state", "S D W-1", "x", when="return_final_state"),
    )

    sequences = Size("S")

    RETURNS: ClassVar = """y (B, T, D) in the dtype of x; with `return_final_state`, (y, final_state), the state like
        `initial_state`."""
    SOURCE: ClassVar = "the short convolution of Mamba (Gu and Dao, 2023)."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.randn(64, 4, requires_grad=True)
        >>> y = retrograd.causal_conv1d(x, weight, activation="silu")
        >>> y.sum().backward()
        >>> weight.grad.shape
        torch.Size([64, 4])
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import causal_conv1d
        >>> x, weight = jnp.ones((2, 16, 64)), jnp.ones((64, 4))
        >>> dx = jax.grad(lambda x: causal_conv1d(x, weight, activation="silu").sum())(x)
        >>> dx.shape
        (2, 16, 64)
        """

    def bind_sizes(self) -> None:
        """Raise for x whose time and channels are exchanged, in words that say so."""
        rows = self.weight.shape[0] if self.weight.shape else None
        _, time, channels = self.x.shape
        if rows not in (None, channels) and rows == time:
            expected = f"(batch, time, channels={rows}), with the channels of weight: pass x.transpose(1, 2), a view"
            raise bad_shape(self.op, "x", self.x.shape, expected)

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The inputs of the forward pass only if needed: for the pre-activation, or for dweight."""
        inputs = self.silu or "weight" in wanted
        x, initial = (("x",), ("initial_state",)) if inputs else ((), ())
        bias = ("bias",) if self.silu else ()
        return (*self.gradients_in(), *self.present((*x, "weight", *bias, *initial, "cu_seqlens")))

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass, exponentials of the activation counted as one."""
        forward = 2 * self.width + (self.bias is not None) + (4 if self.silu else 0)
        backward = 4 * self.width + (self.bias is not None) + (forward + 5 if self.silu else 0)
        return (forward if which == "fwd" else backward) * math.prod(self.x.shape)


IMPLEMENTATIONS = (
    Implementation(
        f"{__package__}.triton",
        takes=names("x weight bias initial_state cu_seqlens activation return_final_state"),
    ),
)
OP = Op(
    Spec,
    __package__,
    IMPLEMENTATIONS,
    functions={"update": ("causal_conv1d_update",)},
    extra={"torch_step": ("causal_conv1d_update_",)},
)
