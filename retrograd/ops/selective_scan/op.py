"""The declaration of selective_scan: its arguments, options, results, and the rules that letters cannot express."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, boundaries, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Param, Pass, Size, accumulator, slot_count

MAX_N = 256
FLOAT_OR_COMPLEX = ("Float", "Complex")  # kinds of numbers
D_DOC = "(D,), float32: a skip from x to y."
DT_BIAS_DOC = "(D,), float32, added to dt."
DT_SOFTPLUS_DOC = "whether to apply softplus to dt + dt_bias."


class Common(CallSpec):
    """What `selective_scan` and `selective_state_update` share: letters and dtypes."""

    x: Param
    A: Param
    B: Param
    C: Param

    autocast: ClassVar = ("x", "B", "C", "z")  # not dt, of which decays are made
    independent: ClassVar = ("B", "D")
    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "D": Letter("channels"),
        "N": Letter("state", 1, MAX_N),
        "G": Letter("groups", divides="D"),
        "K": Letter("groups", divides="D"),
        "S": Letter("sequences", 1),
    }

    @property
    def compute_dtype(self) -> str:
        """Dtype of the real arithmetic."""
        return accumulator(self.x.dtype)

    @property
    def pair_dtype(self) -> str:
        """Dtype of complex numbers, pairs of real ones."""
        return "complex128" if self.compute_dtype == "float64" else "complex64"

    @property
    def complex(self) -> bool:
        """Whether A, B, C and the states are complex."""
        return self.A.dtype.startswith("complex")

    @property
    def state_dtype(self) -> str:
        """Dtype of the states."""
        return self.pair_dtype if self.complex else self.compute_dtype

    @property
    def B_dtypes(self) -> tuple[str, ...]:
        """Dtypes that B may have."""
        return self._dtypes_of_matrix("B")

    @property
    def C_dtypes(self) -> tuple[str, ...]:
        """Dtypes that C may have."""
        return self._dtypes_of_matrix("C")

    def constant(self, name: str) -> bool:
        """Whether B or C is the same at all steps: (D, N)."""
        return False

    def matrix(self, name: str) -> Param:
        """B or C."""
        return self.B if name == "B" else self.C

    def _dtypes_of_matrix(self, name: str) -> tuple[str, ...]:
        """The dtype of the states; a real matrix with a time axis may also have that of x."""
        return (self.state_dtype,) if self.complex or self.constant(name) else (self.x.dtype, self.state_dtype)


@dataclass(frozen=True)
class Spec(Common):
    """Mamba-1's selective state space: a linear recurrence whose step size, input and output depend on the step.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, for every channel::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]        h[-1] = initial_state, or 0
        y[t] = <C[t], h[t]> + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    The arithmetic and the states are in float32. All gradients are bitwise reproducible; a sequence's results and
    gradients depend neither on its batch nor on what it is packed with. For its backward pass the forward pass saves
    the state of every 2 N-th step, about 2 bytes per channel and step. Gradients of complex arrays follow the
    framework's convention: JAX's are the conjugates of PyTorch's.
    """

    x: Param = required(
        "B T D",
        *FLOATS,
        doc="""(B, T, D), float32, bfloat16 or float16, any strides: a transposed (B, D, T) is fine. float64 runs on
        the portable path.""",
    )
    dt: Param = required("B T D", "x", "compute_dtype", doc="(B, T, D), like x or float32.")
    A: Param = required(
        "D N",
        "compute_dtype",
        "pair_dtype",
        kinds=FLOAT_OR_COMPLEX,
        doc="""(D, N), float32; at most 256 states. With complex64 A, B and C are complex64, the states too, and
        y = 2 Re(sum of C h) (without conjugation) as for one of each pair of conjugate states; portable path only.""",
    )
    B: Param = required(
        "B T N | B T G N | D N",
        "B_dtypes",
        kinds=FLOAT_OR_COMPLEX,
        doc="""(B, T, N), or (B, T, G, N) where channel d uses group d // (D / G); like x or float32. Or constant in
        time: (D, N), float32.""",
    )
    C: Param = required(
        "B T N | B T K N | D N",
        "C_dtypes",
        kinds=FLOAT_OR_COMPLEX,
        doc="like B, but not necessarily in the same form.",
    )
    D: Param | None = optional("D", "compute_dtype", doc=D_DOC)
    z: Param | None = optional("B T D", "x", "compute_dtype", doc="(B, T, D), like x or float32: a gate.")
    dt_bias: Param | None = optional("D", "compute_dtype", doc=DT_BIAS_DOC)
    initial_state: Param | None = optional(
        "S D N",
        "state_dtype",
        kinds=FLOAT_OR_COMPLEX,
        doc="(B, D, N), float32 (complex64 for complex A); zeros by default.",
    )
    cu_seqlens: Param | None = boundaries("x", "States are then (S, D, N).")
    dt_softplus: bool = option("bool", False, doc=DT_SOFTPLUS_DOC)
    return_final_state: bool = option("bool", False, doc="also return the state after the last step.")

    op: ClassVar = "selective_scan"
    divides_time: ClassVar = True
    elsewhere: ClassVar = {
        "delta": "dt",
        "delta_bias": "dt_bias",
        "delta_softplus": "dt_softplus",
        "initial_states": "initial_state",
        "return_last_state": "return_final_state",
        "seq_idx": "cu_seqlens, where sequences begin and end",
        "u": "x",
    }
    results: ClassVar = (
        Result("y", "B T D", "x"),
        Result("final_state", "S D N", "state_dtype", when="return_final_state", kinds=FLOAT_OR_COMPLEX),
    )
    # The state that enters each chunk; slots without a chunk hold undefined values.
    kept: ClassVar = (Result("states", "B chunks D N", "state_dtype"),)

    batch = Size("B")
    time = Size("T")
    channels = Size("D")
    N = Size("N")
    sequences = Size("S")

    RETURNS: ClassVar = """out (B, T, D) in the dtype of x; with `return_final_state`, (out, final_state), the state
        (B, D, N) in float32 (complex64). An empty sequence's final state is its initial state."""
    SOURCE: ClassVar = """Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023),
        algorithm 2."""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, dt = torch.randn(2, 100, 64, requires_grad=True), torch.randn(2, 100, 64)
        >>> A, B, C = -torch.rand(64, 16), torch.randn(2, 100, 16), torch.randn(2, 100, 16)
        >>> y, state = retrograd.selective_scan(x, dt, A, B, C, dt_softplus=True, return_final_state=True)
        >>> (y.sum() + state.sum()).backward()
        >>> x.grad.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64, 16]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import selective_scan
        >>> x, dt, B = jnp.ones((2, 100, 64)), jnp.ones((2, 100, 64)), jnp.ones((2, 100, 16))
        >>> dx = jax.grad(lambda x: selective_scan(x, dt, -jnp.ones((64, 16)), B, B).sum())(x)
        >>> dx.shape
        (2, 100, 64)
        """

    def constant(self, name: str) -> bool:
        """Whether B or C is the same at all steps: (D, N)."""
        return len(self.matrix(name).shape) == 2

    def groups(self, name: str) -> int:
        """Groups of channels that share B or C at a step; 1 where it is constant in time."""
        shape = self.matrix(name).shape
        return shape[2] if len(shape) == 4 else 1

    @property
    def chunk(self) -> int:
        """Steps between two saved states: as few as 2 bytes per channel and step allow."""
        numbers = self.N * (2 if self.complex else 1)
        return next((steps for steps in (16, 32, 64) if steps >= 2 * numbers), 128)

    @property
    def chunks(self) -> int:
        """Places for saved states in a row."""
        return slot_count(self, self.chunk)

    @property
    def state(self) -> Param:
        """The state of every sequence."""
        return self.param("S D N", "state_dtype")

    def bytes_moved(self, which: Pass) -> int:
        """The fewest bytes a pass moves; the backward kernels read the initial state from the saved states."""
        unread = self.initial_state if which == "bwd" else None
        return Common.bytes_moved(self, which) - (unread.nbytes if unread else 0)

    def flops(self, which: Pass) -> int:
        """Real multiplications and additions of a pass, without exponentials."""
        steps = self.batch * self.time * self.channels
        per_state, per_step = (6, 10) if which == "fwd" else (18, 20)
        return steps * (per_state * self.N * (4 if self.complex else 1) + per_step)

    def exps(self, which: Pass) -> int:
        """The fewest exponentials of a pass: one per state and step, and one each for softplus and gate."""
        steps = self.batch * self.time * self.channels
        return steps * (self.N + self.dt_softplus + (self.z is not None))


IMPLEMENTATIONS = (
    Implementation(
        f"{__package__}.hopper",
        takes=names("x dt A B C D z dt_bias initial_state cu_seqlens dt_softplus return_final_state"),
    ),
    Implementation(
        f"{__package__}.triton",
        takes=names("x dt A B C D z dt_bias initial_state cu_seqlens dt_softplus return_final_state"),
    ),
)
OP = Op(Spec, __package__, IMPLEMENTATIONS, functions={"update": ("selective_state_update",)})
