"""What a call of linear_scan asks for: dims, dtypes and options, every check, and the bytes and FLOPs it takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from retrograd.core.dtypes import BYTES, KERNEL_FLOATS
from retrograd.core.errors import bad_dtype, bad_shape, bad_value, check_option
from retrograd.core.op import Param

OP = "linear_scan"
MAX_TIME = 2**30  # steps are counted in 32 bits, with room for the tiles past the end
DTYPES = (*KERNEL_FLOATS, "complex64", "float64", "complex128")

Pass = Literal["fwd", "bwd"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked call.

    Attributes:
        a: decays, (B, T, D), or of size 1 along B, D or both.
        b: inputs, (B, T, D).
        initial_state: (sequences, D), or None for zeros.
        cu_seqlens: (sequences + 1,) where B is 1 and sequences are packed along T, else None.
        reverse: time runs from the last step to the first.
        return_final_state: the state after the last step is a result too.

    Raises:
        ValueError, TypeError: on construction, for arrays and options that do not fit together.
    """

    a: Param
    b: Param
    initial_state: Param | None = None
    cu_seqlens: Param | None = None
    reverse: bool = False
    return_final_state: bool = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def batch(self) -> int:
        """Rows of the arrays, B."""
        return self.b.shape[0]

    @property
    def time(self) -> int:
        """Steps of a row, T."""
        return self.b.shape[1]

    @property
    def channels(self) -> int:
        """D."""
        return self.b.shape[2]

    @property
    def sequences(self) -> int:
        """Recurrences that run side by side: packed sequences, or rows."""
        return self.batch if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def complex(self) -> bool:
        """Whether numbers are complex."""
        return self.b.dtype.startswith("complex")

    @property
    def state_dtype(self) -> str:
        """Dtype of states and of the arithmetic."""
        wide = self.b.dtype in ("float64", "complex128")
        return ("complex128" if wide else "complex64") if self.complex else ("float64" if wide else "float32")

    @property
    def shares_batch(self) -> bool:
        """Whether rows share one a, so that its gradient is summed over them."""
        return self.a.shape[0] != self.batch

    @property
    def shares_channels(self) -> bool:
        """Whether channels share one a, so that its gradient is summed over them."""
        return self.a.shape[2] != self.channels

    @property
    def has_kernels(self) -> bool:
        """Whether kernels take the dtypes; others run on the portable path."""
        return self.state_dtype in ("float32", "complex64")

    @property
    def final_state(self) -> Param:
        """The final state."""
        return Param((self.sequences, self.channels), self.state_dtype)

    def bytes_moved(self, which: Pass) -> int:
        """The fewest bytes a pass moves: each array read once, each result written once."""
        a, b = (prod(p.shape) * BYTES[p.dtype] for p in (self.a, self.b))
        initial = prod(self.initial_state.shape) * BYTES[self.initial_state.dtype] if self.initial_state else 0
        final = prod(self.final_state.shape) * BYTES[self.state_dtype] if self.return_final_state else 0
        if which == "fwd":
            return a + 2 * b + initial + final
        return 2 * a + 3 * b + 2 * initial + final  # dh, a, h, db, da

    def flops(self, which: Pass) -> int:
        """Multiplications and additions: a step, and in the backward pass the product with h too."""
        steps = prod(self.b.shape)
        if self.complex:
            return steps * (8 if which == "fwd" else 14)
        return steps * (2 if which == "fwd" else 3)


def check(spec: Spec) -> None:
    """Raise what the user needs to read if the arrays and options do not fit together."""
    a, b = spec.a, spec.b
    for name, param in (("a", a), ("b", b)):
        if param.dtype not in DTYPES:
            raise bad_dtype(OP, name, param.dtype, DTYPES)
    if len(b.shape) != 3:
        raise bad_shape(OP, "b", b.shape, "(batch, time, channels)")
    B, T, D = b.shape
    fits = len(a.shape) == 3 and a.shape[0] in (1, B) and a.shape[1] == T and a.shape[2] in (1, D)
    if not fits:
        expected = f"(batch={B}, time={T}, channels={D}), the shape of b; batch and channels may be 1"
        raise bad_shape(OP, "a", a.shape, expected)
    if T > MAX_TIME:
        raise bad_shape(OP, "b", b.shape, f"at most {MAX_TIME} steps along time")
    alike = KERNEL_FLOATS if b.dtype in KERNEL_FLOATS else (b.dtype,)
    if a.dtype not in alike:
        raise bad_dtype(OP, "a", a.dtype, alike)
    for option in ("reverse", "return_final_state"):
        check_option(OP, option, getattr(spec, option), "bool")
    cu_seqlens = spec.cu_seqlens
    if cu_seqlens is not None:
        if cu_seqlens.dtype != "int32":
            raise bad_dtype(OP, "cu_seqlens", cu_seqlens.dtype, ("int32",))
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 2:
            raise bad_shape(OP, "cu_seqlens", cu_seqlens.shape, "(sequences + 1,) with at least one sequence")
        if B != 1:
            raise bad_value(OP, "batch of b", B, "1, since cu_seqlens is given and sequences are packed along time")
    initial = spec.initial_state
    if initial is not None:
        if initial.shape != (spec.sequences, D):
            rows = "sequences" if cu_seqlens is not None else "batch"
            raise bad_shape(OP, "initial_state", initial.shape, f"({rows}={spec.sequences}, channels={D})")
        allowed = tuple(dict.fromkeys((spec.state_dtype, b.dtype)))
        if initial.dtype not in allowed:
            raise bad_dtype(OP, "initial_state", initial.dtype, allowed)
