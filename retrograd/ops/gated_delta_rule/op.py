"""The declaration of gated_delta_rule: its arguments, options, results, and the checks that letters cannot express."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, boundaries, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Param, Pass, Size, known, slot_count

# A sequence continued from its state at a multiple of this many steps has the same bits as in one call, on every path.
BORDER = 64
# Steps of all rows, plus a block per sequence: kernels count steps in 32 bits, up to some blocks past the last one.
MOST_STEPS = 2**31 - 2**18
SMALLEST = 1e-6  # added to the square of a norm, with `normalize_qk`


@dataclass(frozen=True)
class Spec(CallSpec):
    """The gated delta rule: a linear recurrence that moves what its state predicts for a key towards a value.

    For every head, whose state S is (V, K)::

        S    = exp(g[t]) S[t - 1]                               S[-1] = initial_state, or 0
        S[t] = S + beta[t] (v[t] - S k[t]) k[t]^T
        o[t] = scale S[t] q[t]

    With g (B, T, H, K) each channel of K has a decay of its own. Sums and states are in float32; operands of matrix
    products are rounded to the dtype of v. All gradients are bitwise reproducible; a sequence's results and gradients
    depend neither on its batch nor on the sequences packed with it. If v is float64, all float32 here is float64.
    """

    q: Param = required(
        "B T G K",
        *FLOATS,
        doc="""(B, T, G, K), float32, bfloat16 or float16, any strides, where head h uses key head h // (H / G); K up to
        256. float64 runs on the portable path.""",
    )
    k: Param = required("B T G K", "q", doc="as q; of norm 1, or smaller, unless `normalize_qk` makes it so.")
    v: Param = required("B T H V", "q", doc="(B, T, H, V), in the dtype of q; V up to 256.")
    g: Param = required(
        "B T H | B T H K",
        "q",
        "compute_dtype",
        doc="(B, T, H), or (B, T, H, K): log decays, at most 0; in the dtype of q or float32.",
    )
    beta: Param = required("B T H", "q", "compute_dtype", doc="(B, T, H), from 0 to 2: how far; as g.")
    initial_state: Param | None = optional("S H V K", "compute_dtype", doc="(B, H, V, K), float32; zeros by default.")
    cu_seqlens: Param | None = boundaries("q", "States are then (S, H, V, K).")
    scale: float | None = option("float?", None, doc="factor of the results; 1 / sqrt(K) by default.")
    return_final_state: bool = option("bool", False, doc="also return the state after the last step.")
    normalize_qk: bool = option("bool", False, doc="divide q and k by sqrt(sum over K of their squares + 1e-6).")

    op: ClassVar = "gated_delta_rule"
    autocast: ClassVar = ("q", "k", "v")  # not g, the decays, and beta
    independent: ClassVar = ("B", "H")
    elsewhere: ClassVar = {
        "output_final_state": "return_final_state",
        "use_qk_l2norm_in_kernel": "normalize_qk",
    }
    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "G": Letter("key heads", divides="H"),
        "H": Letter("heads"),
        "K": Letter("key channels", 1, 256),
        "V": Letter("value channels", 1, 256),
        "S": Letter("sequences", 1),
    }
    results: ClassVar = (
        Result("o", "B T H V", "v"),
        Result("final_state", "S H V K", "compute_dtype", when="return_final_state"),
    )
    kept: ClassVar = (
        Result("states", "B chunks H V K", "v"),
        Result("inverse", "B blocks H targets sources", "v", when="keeps_pairs"),
        Result("scores", "B blocks H targets sources", "v", when="keeps_pairs"),
    )
    targets: ClassVar = BORDER
    sources: ClassVar = BORDER

    batch = Size("B")
    time = Size("T")
    key_heads = Size("G")
    heads = Size("H")
    K = Size("K")
    V = Size("V")
    sequences = Size("S")

    RETURNS: ClassVar = """o (B, T, H, V) in the dtype of v; with `return_final_state`, (o, final_state), the state
        (B, H, V, K) in float32. An empty sequence's final state is its initial state."""
    SOURCE: ClassVar = """Yang, Kautz and Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule (2024),
        equation 10; with a decay for each channel, Kimi Team, Kimi Linear (2025), equation 1."""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> q, k = torch.randn(2, 100, 2, 64), torch.randn(2, 100, 2, 64)
        >>> v, g = torch.randn(2, 100, 4, 32, requires_grad=True), -torch.rand(2, 100, 4)
        >>> o, state = retrograd.gated_delta_rule(
        ...     q, k, v, g, torch.rand(2, 100, 4), normalize_qk=True, return_final_state=True
        ... )
        >>> (o.sum() + state.sum()).backward()
        >>> v.grad.shape, state.shape
        (torch.Size([2, 100, 4, 32]), torch.Size([2, 4, 32, 64]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule
        >>> q, v, beta = jnp.ones((2, 100, 2, 64)), jnp.ones((2, 100, 4, 32)), jnp.ones((2, 100, 4)) / 2
        >>> dv = jax.grad(lambda v: gated_delta_rule(q, q, v, -beta, beta, normalize_qk=True).sum())(v)
        >>> dv.shape
        (2, 100, 4, 32)
        """

    @property
    def of_channels(self) -> bool:
        """Whether each channel of K has a decay of its own."""
        return len(self.g.shape) == 4

    @property
    def factor(self) -> float:
        """The scale of the results."""
        return factor_of(self.scale, self.K)

    @property
    def chunk(self) -> int:
        """Steps between two saved states: with 128 and K = 128 they take as many bytes as v.

        With a decay for each channel, fewer cost no time in both passes together, where T and M are saved.
        """
        if self.of_channels and self.keeps_pairs:
            return 1024
        return 128 if self.K <= 128 else 256

    @property
    def chunks(self) -> int:
        """The number of chunk slots of a row, see `slot_count`; the contents of slots without a chunk are undefined."""
        return slot_count(self, self.chunk)

    @property
    def keeps_pairs(self) -> bool:
        """Whether the inverse and the scores of blocks are saved, which take as many bytes as v."""
        return self.v.dtype in ("bfloat16", "float16") and self.K == self.V == 128

    @property
    def blocks(self) -> int:
        """The number of slots of blocks of a row."""
        return slot_count(self, BORDER)

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """As of any op, but not all saved arrays are always there."""
        read = CallSpec.reads(self, wanted)
        return read if self.keeps_pairs else tuple(name for name in read if name not in ("inverse", "scores"))

    def flops(self, which: Pass) -> int:
        """Those of the matrix products, with blocks of 64 steps; half of the pairs of steps of a block are counted."""
        steps = self.batch * self.time
        states, within, scores = (3, 2, 2) if which == "fwd" else (7, 4, 6)
        per_head = 2 * states * self.V * self.K + within * BORDER * self.V
        with_scores = self.heads if self.of_channels else self.key_heads
        return steps * (self.heads * per_head + scores * with_scores * BORDER * self.K)

    def check(self) -> None:
        """Raise for heads that key heads do not divide, and for more steps than kernels can count."""
        check_heads(self, self.v)
        steps = self.batch * self.time + BORDER * self.sequences
        if known(steps) and steps > MOST_STEPS:
            expected = f"batch * time + {BORDER} * sequences of at most {MOST_STEPS}"
            raise bad_shape(self.op, "q", self.q.shape, expected)

    def check_options(self) -> None:
        """Raise for a scale that is not finite, too."""
        CallSpec.check_options(self)
        check_scale(self, self.scale)


def check_heads(call: CallSpec, v: Param) -> None:
    """Raise for heads that key heads do not divide, in a call of the op or of a function that calls it."""
    heads, key_heads = call.sizes["H"], call.sizes["G"]
    if known(heads) and (key_heads < 1 or heads % key_heads):
        argument = f"v.shape[{len(v.shape) - 2}]"
        raise bad_value(call.op, argument, heads, f"a multiple of the key heads, {key_heads}")


def check_scale(call: CallSpec, scale: float | None) -> None:
    """Raise for a scale that is not finite."""
    if scale is not None and not math.isfinite(scale):
        raise bad_value(call.op, "scale", scale, "a finite number")


def factor_of(scale: float | None, K: int) -> float:
    """The factor of the results."""
    return 1 / math.sqrt(K) if scale is None else scale


TAKES = names("q k v g beta initial_state cu_seqlens scale return_final_state normalize_qk")
IMPLEMENTATIONS = (
    Implementation(f"{__package__}.hopper", takes=TAKES),
    Implementation(f"{__package__}.hopper.channels", takes=TAKES),
    Implementation(f"{__package__}.triton", takes=TAKES),
    Implementation(f"{__package__}.triton.channels", takes=TAKES),
)
OP = Op(
    Spec,
    __package__,
    IMPLEMENTATIONS,
    functions={
        "generation": ("gated_delta_rule_update", "gated_delta_rule_prefill", "gated_delta_rule_step"),
    },
    extra={"torch_step": ("gated_delta_rule_step_", "gated_delta_rule_update_")},
)
