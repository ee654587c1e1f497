"""What a call of causal_conv1d asks for: dims, dtypes and options, every check, and the bytes and FLOPs it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from retrograd.core.dtypes import BYTES, FLOATS, KERNEL_FLOATS, accumulator
from retrograd.core.errors import bad_dtype, bad_shape, bad_value, check_option
from retrograd.core.op import Param

NAME = "causal_conv1d"
# Widths that have kernels; the portable path takes 1 and up to MAX_WIDTH.
KERNEL_WIDTHS = (2, 3, 4)
MAX_WIDTH = 64
ACTIVATIONS = (None, "silu")
MAX_T = 2**31 - 2**18  # steps are counted in int32, and the last tile may end behind them

Pass = Literal["fwd", "bwd"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked call.

    Attributes:
        x, weight, bias, initial_state, cu_seqlens: shape and dtype of each array, None where absent.
        activation: applied to the sums; None or `silu`.
        return_final_state: whether the last inputs are a result.

    Raises:
        ValueError, TypeError: on construction, for arrays and options that do not fit together.
    """

    x: Param
    weight: Param
    bias: Param | None = None
    initial_state: Param | None = None
    cu_seqlens: Param | None = None
    activation: str | None = None
    return_final_state: bool = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def B(self) -> int:
        """Rows of the batch."""
        return self.x.shape[0]

    @property
    def T(self) -> int:
        """Steps of time, of all packed sequences together."""
        return self.x.shape[1]

    @property
    def D(self) -> int:
        """Channels."""
        return self.x.shape[2]

    @property
    def W(self) -> int:
        """Taps of the filter."""
        return self.weight.shape[1]

    @property
    def packed(self) -> bool:
        """Whether sequences lie one after another in a batch of one."""
        return self.cu_seqlens is not None

    @property
    def sequences(self) -> int:
        """Independent sequences: rows of the batch, or what is packed in its only one."""
        return self.B if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def silu(self) -> bool:
        """Whether the activation is silu."""
        return self.activation == "silu"

    @property
    def state(self) -> Param:
        """Shape and dtype of a state: the W - 1 inputs before a step, oldest first."""
        return Param((self.sequences, self.D, self.W - 1), self.x.dtype)

    @property
    def compute_dtype(self) -> str:
        """Dtype of the arithmetic."""
        return accumulator(self.x.dtype)

    @property
    def has_kernel(self) -> bool:
        """Whether there are kernels for this width and dtype."""
        return self.W in KERNEL_WIDTHS and self.x.dtype in KERNEL_FLOATS

    def bytes_moved(self, which: Pass) -> int:
        """The fewest bytes a pass moves: each array read once, each result written once."""
        size, element = math.prod(self.x.shape), BYTES[self.x.dtype]
        parameters = sum(BYTES[p.dtype] * math.prod(p.shape) for p in (self.weight, self.bias) if p)
        state = element * math.prod(self.state.shape)
        states = state * ((self.initial_state is not None) + self.return_final_state)
        index = BYTES["int32"] * (self.sequences + 1) if self.packed else 0
        if which == "fwd":
            return 2 * size * element + parameters + states + index
        initial = state if self.initial_state is not None else 0
        return 3 * size * element + 2 * parameters + states + initial + index

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass, exponentials of the activation counted as one."""
        forward = 2 * self.W + (self.bias is not None) + (4 if self.silu else 0)
        backward = 4 * self.W + (self.bias is not None) + (forward + 5 if self.silu else 0)
        return (forward if which == "fwd" else backward) * math.prod(self.x.shape)


def check(spec: Spec) -> None:
    """Raise what the user needs to read if the arrays and options do not fit together."""
    check_options(spec)
    x, weight = spec.x, spec.weight
    if len(x.shape) != 3:
        raise bad_shape(NAME, "x", x.shape, "(batch, time, channels)")
    if x.dtype not in FLOATS:
        raise bad_dtype(NAME, "x", x.dtype, FLOATS)
    _, T, D = x.shape
    if T > MAX_T:
        raise bad_shape(NAME, "x", x.shape, f"at most {MAX_T} steps of time")
    if len(weight.shape) != 2 or weight.shape[0] != D or not 1 <= weight.shape[1] <= MAX_WIDTH:
        raise bad_shape(NAME, "weight", weight.shape, f"(channels={D}, width=1..{MAX_WIDTH})")
    if spec.bias is not None and spec.bias.shape != (D,):
        raise bad_shape(NAME, "bias", spec.bias.shape, f"(channels={D},)")
    allowed = tuple(dict.fromkeys(("float32", x.dtype))) if x.dtype != "float64" else ("float64",)
    for name, parameter in (("weight", weight), ("bias", spec.bias)):
        if parameter is not None and parameter.dtype not in allowed:
            raise bad_dtype(NAME, name, parameter.dtype, allowed)
    check_sequences(spec)


def check_sequences(spec: Spec) -> None:
    """Raise for sequences or states that do not fit x; what cu_seqlens holds is not known here."""
    cu_seqlens, initial = spec.cu_seqlens, spec.initial_state
    if cu_seqlens is not None:
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1:
            raise bad_shape(NAME, "cu_seqlens", cu_seqlens.shape, "(sequences + 1,)")
        if cu_seqlens.dtype != "int32":
            raise bad_dtype(NAME, "cu_seqlens", cu_seqlens.dtype, ("int32",))
        if spec.B != 1:
            raise bad_shape(NAME, "x", spec.x.shape, "(batch=1, time, channels), since cu_seqlens is given")
    if initial is None:
        return
    if initial.shape != spec.state.shape:
        counted = "sequences" if spec.packed else "batch"
        expected = f"({counted}={spec.sequences}, channels={spec.D}, width-1={spec.W - 1})"
        raise bad_shape(NAME, "initial_state", initial.shape, expected)
    if initial.dtype != spec.x.dtype:
        raise bad_dtype(NAME, "initial_state", initial.dtype, (spec.x.dtype,))


def check_options(spec: Spec) -> None:
    """Raise for an option that no x can be used with."""
    check_option(NAME, "activation", spec.activation, "str?")
    if spec.activation not in ACTIVATIONS:
        raise bad_value(NAME, "activation", spec.activation, " or ".join(map(repr, ACTIVATIONS)))
    check_option(NAME, "return_final_state", spec.return_final_state, "bool")
