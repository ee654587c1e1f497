"""The declaration of ssd: its arguments, options and results, and the checks that letters cannot express."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, boundaries, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Param, Pass, Size, known, slot_count

NOT_NEGATIVE = (0.0, math.inf)
# A sequence continued from its state at a multiple of this many steps has the same bits as in one call, on every path.
BORDER = 64
# Steps of all rows, plus a block per sequence: kernels count steps in 32 bits, up to some blocks past the last one.
MOST_STEPS = 2**31 - 2**18
# Steps of a block in the count of FLOPs: pairs of steps within a block, states between blocks.
BLOCK = 64


class Common(CallSpec):
    """What calls with a sequence and with a step share: letters, and the check of `dt_limit`."""

    dt_limit: tuple[float, float]

    autocast: ClassVar = ("x", "B", "C", "z")  # not dt, of which decays are made
    independent: ClassVar = ("B", "H")
    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "H": Letter("heads"),
        "P": Letter("channels", 1, 256),
        "G": Letter("groups", divides="H"),
        "N": Letter("state", 1, 256),
        "S": Letter("sequences", 1),
    }

    def check_options(self) -> None:
        """Raise for a `dt_limit` that is not (low, high) with low <= high, too."""
        CallSpec.check_options(self)
        limit = self.dt_limit
        if len(limit) != 2 or not limit[0] <= limit[1]:
            raise bad_value(self.op, "dt_limit", limit, "(low, high) with low <= high")


@dataclass(frozen=True)
class OfSequence(Common):
    """What `ssd` and `ssd_prefill` share."""

    x: Param = required(
        "B T H P",
        *FLOATS,
        doc="""(B, T, H, P), float32, bfloat16 or float16, any strides; P up to 256.
        float64 runs on the portable path.""",
    )
    dt: Param = required("B T H", "x", "compute_dtype", doc="(B, T, H), like x or float32.")
    A: Param = required("H", "compute_dtype", doc="(H,), float32.")
    B: Param = required(
        "B T G N",
        "x",
        "compute_dtype",
        doc="""(B, T, G, N), where head h uses group h // (H / G); N up
        to 256; like x or float32.""",
    )
    C: Param = required("B T G N", "x", "compute_dtype", doc="as B.")
    D: Param | None = optional("H | H P", "compute_dtype", doc="(H,) or (H, P), float32: a skip from x to y.")
    z: Param | None = optional("B T H P", "x", "compute_dtype", doc="(B, T, H, P), like x or float32: a gate.")
    dt_bias: Param | None = optional("H", "compute_dtype", doc="(H,), float32, added to dt.")
    initial_state: Param | None = optional(
        "S H P N",
        "compute_dtype",
        doc="""(B, H, P, N), float32; zeros by
        default.""",
    )
    dt_softplus: bool = option("bool", False, doc="whether softplus makes delta positive.")
    dt_limit: tuple[float, float] = option(
        "float[]",
        NOT_NEGATIVE,
        doc="""the least and the largest delta; a value
        outside is clamped, and has no gradient. By default 0 and infinity: without `dt_softplus` a negative step
        becomes 0.""",
    )
    cu_seqlens: Param | None = boundaries("x", "States are then (S, H, P, N).")

    batch = Size("B")
    time = Size("T")
    heads = Size("H")
    P = Size("P")
    groups = Size("G")
    N = Size("N")
    sequences = Size("S")

    def check(self) -> None:
        """Raise for more steps than kernels can count."""
        steps = self.batch * self.time + BLOCK * self.sequences
        if known(steps) and steps > MOST_STEPS:
            expected = f"batch * time + {BLOCK} * sequences of at most {MOST_STEPS}"
            raise bad_shape(self.op, "x", self.x.shape, expected)


@dataclass(frozen=True)
class Spec(OfSequence):
    """Mamba-2's state space dual: a linear recurrence with one decay a head, computed as matrix products.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, moved into `dt_limit`, for every head,
    whose state h is (P, N)::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]^T      h[-1] = initial_state, or 0
        y[t] = h[t] C[t] + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    Sums and states are in float32; operands of matrix products are rounded to the dtype of x, B and C, or stay in
    float32 where these differ. All gradients are bitwise reproducible; a sequence's results and gradients depend
    neither on its batch nor on the sequences packed with it. A row of the result does not depend on later steps if all
    values are finite; a value that is not may corrupt up to 63 rows before it. The forward pass saves the state of
    every 128th step (256th above N = 128) for the backward pass: for a long sequence, where x, B and C have one dtype,
    at most as many bytes as x has. If x is float64, all float32 here is float64.
    """

    return_final_state: bool = option("bool", False, doc="also return the state after the last step.")

    op: ClassVar = "ssd"
    divides_time: ClassVar = True
    elsewhere: ClassVar = {
        "chunk_size": "nothing: the kernels choose their blocks",
        "initial_states": "initial_state",
        "return_final_states": "return_final_state",
        "seq_idx": "cu_seqlens, where sequences begin and end",
    }
    state_at_border: ClassVar = False  # whether the final state is that at the last border, for `ssd_prefill`
    results: ClassVar = (
        Result("y", "B T H P", "x"),
        Result("final_state", "S H P N", "compute_dtype", when="return_final_state"),
    )
    kept: ClassVar = (Result("states", "B chunks H P N", "operand_dtype"),)

    RETURNS: ClassVar = """out (B, T, H, P) in the dtype of x; with `return_final_state`, (out, final_state), the state
        (B, H, P, N) in float32. An empty sequence's final state is its initial state."""
    SOURCE: ClassVar = """Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through
        Structured State Space Duality (2024), section 6."""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, dt = torch.randn(2, 100, 8, 64, requires_grad=True), torch.randn(2, 100, 8)
        >>> A, B, C = -torch.rand(8), torch.randn(2, 100, 1, 128), torch.randn(2, 100, 1, 128)
        >>> y, state = retrograd.ssd(x, dt, A, B, C, dt_softplus=True, return_final_state=True)
        >>> (y.sum() + state.sum()).backward()
        >>> x.grad.shape, state.shape
        (torch.Size([2, 100, 8, 64]), torch.Size([2, 8, 64, 128]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import ssd
        >>> x, dt, B = jnp.ones((2, 100, 8, 64)), jnp.ones((2, 100, 8)), jnp.ones((2, 100, 1, 128))
        >>> dx = jax.grad(lambda x: ssd(x, dt, -jnp.ones(8), B, B).sum())(x)
        >>> dx.shape
        (2, 100, 8, 64)
        """

    @property
    def operand_dtype(self) -> str:
        """Dtype of matrix operands and saved states: that of x, B and C, or float32 where they differ."""
        same = self.B.dtype == self.C.dtype == self.x.dtype
        return self.x.dtype if same else self.compute_dtype

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest delta, in the range of the dtype of sums."""
        return in_range(self.dt_limit, self.compute_dtype)

    @property
    def chunk(self) -> int:
        """Steps between two saved states.

        With this many steps, the saved states of a long sequence take at most as many bytes as x, if x has their dtype.
        """
        return 128 if self.N <= 128 else 256

    @property
    def chunks(self) -> int:
        """The number of chunk slots of a row, see `slot_count`; the contents of slots without a chunk are undefined."""
        return slot_count(self, self.chunk)

    @property
    def wide_skip(self) -> bool:
        """Whether D is (H, P)."""
        return self.D is not None and len(self.D.shape) == 2

    def bytes_moved(self, which: Pass) -> int:
        """As of any op, but the backward kernels do not read the initial state: it is one of the saved states."""
        moved = CallSpec.bytes_moved(self, which)
        return moved - self.initial_state.nbytes if which == "bwd" and self.initial_state else moved

    def flops(self, which: Pass) -> int:
        """Those of the matrix products, with blocks of 64 steps; half of the pairs of steps of a block are counted."""
        steps = self.batch * self.time
        states, pairs, scores = (2, 1, 1) if which == "fwd" else (5, 2, 3)
        per_head = self.P * (2 * states * self.N + pairs * BLOCK)
        return steps * (self.heads * per_head + scores * self.groups * BLOCK * self.N)


def in_range(limit: tuple[float, float], dtype: str) -> tuple[float, float]:
    """The limit with numbers outside of the range of the dtype replaced by infinity."""
    largest = 2.0**128 if dtype == "float32" else math.inf

    def number(x: float) -> float:
        return math.copysign(math.inf, x) if abs(x) >= largest else float(x)

    return number(limit[0]), number(limit[1])


IMPLEMENTATIONS = (
    Implementation(
        f"{__package__}.hopper",
        takes=names("x dt A B C D dt_bias initial_state cu_seqlens dt_softplus dt_limit return_final_state"),
    ),
    Implementation(
        f"{__package__}.triton",
        takes=names("x dt A B C D z dt_bias initial_state cu_seqlens dt_softplus dt_limit return_final_state"),
    ),
)
OP = Op(
    Spec,
    __package__,
    IMPLEMENTATIONS,
    functions={"generation": ("ssd_update", "ssd_prefill", "ssd_step")},
    extra={"torch_step": ("ssd_step_", "ssd_update_")},
)
