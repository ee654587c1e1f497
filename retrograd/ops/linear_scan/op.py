"""The declaration of linear_scan: its arguments, options, results, and the rules that letters cannot express."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, boundaries, option, optional, required
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.errors import bad_shape
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Param, Pass, Size, known

MAX_TIME = 2**30  # steps are counted in 32 bits, with room for the tiles past the end
DTYPES = (*KERNEL_FLOATS, "complex64", "float64", "complex128")
KINDS = ("Float", "Complex")


@dataclass(frozen=True)
class Spec(CallSpec):
    """Linear recurrence along time, each channel by itself.

    ::

        h[t] = a[t] * h[t - 1] + b[t]        h[-1] = initial_state, or 0

    The arithmetic is in float32 (complex64), whatever the dtypes; no logarithms, so decays of exactly 0 and 1 are
    exact. All gradients are bitwise reproducible; a sequence's results and gradients depend neither on its batch nor on
    what it is packed with. The product of a over a few thousand neighbouring steps is formed and must not overflow.
    """

    a: Param = required(
        "#B T #D",
        "a_dtypes",
        doc="(B, T, D), or of size 1 along B, D or both, for decays that rows or channels share. Any strides.",
        kinds=KINDS,
    )
    b: Param = required(
        "B T D",
        *DTYPES,
        doc="""(B, T, D), any strides. a and b are each float32, bfloat16 or float16, or both are complex64. float64 and
            complex128 run on the portable path.""",
        kinds=KINDS,
    )
    initial_state: Param | None = optional(
        "S D",
        "compute_dtype",
        "b",
        doc="(B, D), float32 or the dtype of b (complex64 for complex b); zeros by default.",
        kinds=KINDS,
    )
    cu_seqlens: Param | None = boundaries("b", "States are then (S, D).")
    reverse: bool = option("bool", False, doc="scan from the last step to the first: h[t] = a[t] * h[t + 1] + b[t].")
    return_final_state: bool = option(
        "bool", False, doc="also return the state after the last step (the first, with `reverse`)."
    )

    op: ClassVar = "linear_scan"
    divides_time: ClassVar = True
    independent: ClassVar = ("B", "D")
    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "D": Letter("channels"),
        "S": Letter("sequences", 1),
    }
    results: ClassVar = (
        Result("h", "B T D", "b", kinds=KINDS),
        Result("final_state", "S D", "compute_dtype", when="return_final_state", kinds=KINDS),
    )

    batch = Size("B")
    time = Size("T")
    channels = Size("D")
    sequences = Size("S")  # independent recurrences: packed sequences, or rows

    RETURNS: ClassVar = """h (B, T, D) in the dtype of b; with `return_final_state`, (h, final_state), the state (B, D)
        in float32, or complex64. An empty sequence's final state is its initial state."""
    SOURCE: ClassVar = """Blelloch, Prefix Sums and Their Applications (1990), section 1.4; the gradient is in the
        op's README."""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> a, b = torch.rand(2, 100, 64, requires_grad=True), torch.randn(2, 100, 64, requires_grad=True)
        >>> h, state = retrograd.linear_scan(a, b, return_final_state=True)
        >>> (h.sum() + state.sum()).backward()
        >>> a.grad.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import linear_scan
        >>> a, b = jnp.full((2, 100, 64), 0.9), jnp.ones((2, 100, 64))
        >>> da = jax.grad(lambda a: linear_scan(a, b).sum())(a)
        >>> da.shape
        (2, 100, 64)
        """

    @property
    def complex(self) -> bool:
        """Whether numbers are complex."""
        return self.b.dtype.startswith("complex")

    @property
    def a_dtypes(self) -> tuple[str, ...]:
        """Dtypes that a may have beside that of b."""
        return KERNEL_FLOATS if self.b.dtype in KERNEL_FLOATS else (self.b.dtype,)

    @property
    def shares_batch(self) -> bool:
        """Whether rows share one a, so that its gradient is summed over them."""
        return self.a.shape[0] != self.batch

    @property
    def shares_channels(self) -> bool:
        """Whether channels share one a, so that its gradient is summed over them."""
        return self.a.shape[2] != self.channels

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The gradients of the results, a, and what the gradient of a needs; b is not read."""
        of_a = ("h", "initial_state") if "a" in wanted else ()
        return (*self.gradients_in(), *self.present(("a", *of_a, "cu_seqlens")))

    def flops(self, which: Pass) -> int:
        """Multiplications and additions: of the recurrence, and in the backward pass of the product with h too."""
        steps = prod(self.b.shape)
        if self.complex:
            return steps * (8 if which == "fwd" else 14)
        return steps * (2 if which == "fwd" else 3)

    def check(self) -> None:
        """Raise for more steps than kernels count."""
        if known(self.time) and self.time > MAX_TIME:
            raise bad_shape(self.op, "b", self.b.shape, f"at most {MAX_TIME} steps along time")


IMPLEMENTATIONS = (
    Implementation(
        f"{__package__}.triton",
        takes=names("a b initial_state cu_seqlens reverse return_final_state"),
    ),
)
OP = Op(Spec, __package__, IMPLEMENTATIONS)
