"""The declaration of attention: its arguments, options, results, and the rules that letters cannot express."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, boundaries, labels, number, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_value
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Fold, Param, Pass, Size, known

UNLIMITED = -1  # of a window's side
SLOPES = "alibi_slopes is then (H,) or (S, H)."
MOST_STEPS = 2**31  # that ids may tell apart
FORMS = 2**16  # values of a random number: one in FORMS is the finest step of dropout_p
OF_BOOLS = "0 where a key is seen, else -inf"  # a bias in place of a mask
MOST_HEADS = 128  # of today's models
LOOKS_TRANSPOSED = (
    "attention: q has more heads than there are keys. Its layout is (B, T, H, D), time before heads; if it is "
    "(B, H, T, D), pass q.transpose(1, 2), and k and v likewise: views are taken without a copy."
)
ELSEWHERE = {
    "attention_mask": "segment_ids for packed or padded rows, or bias",
    "attn_bias": "bias",
    "attn_mask": f"causal, window, segment_ids or bias ({OF_BOOLS})",
    "cu_seqlens": "cu_seqlens_q and cu_seqlens_k",
    "dropout": "dropout_p and dropout_seed",
    "dropout_rate": "dropout_p and dropout_seed",
    "enable_gqa": "nothing: heads of k and v that divide those of q are shared",
    "is_causal": "causal",
    "key": "k",
    "logits_soft_cap": "softcap",
    "mask": f"causal, window, segment_ids or bias ({OF_BOOLS})",
    "max_seqlen": "nothing: it is not needed",
    "max_seqlen_k": "nothing: it is not needed",
    "max_seqlen_q": "nothing: it is not needed",
    "query": "q",
    "return_attn_probs": "return_lse",
    "s_aux": "sinks",
    "scaling": "scale",
    "sliding_window": "window, (left, right): (sliding_window - 1, 0) where it counts a query's own key",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "value": "v",
    "window_size": "window, (left, right)",
}


def check_scores(op: str, window: tuple[int, int] | None, scale: float | None, softcap: float | None) -> None:
    """Raise for a window, a scale or a softcap that is invalid for every q."""
    sides = (0, 0) if window is None else window
    if len(sides) != 2 or not all(UNLIMITED <= side < 2**31 for side in sides):
        raise bad_value(op, "window", window, "(left, right), each at least 0, in 32 bits, or -1 for all")
    if scale is not None and not math.isfinite(scale):
        raise bad_value(op, "scale", scale, "a finite number")
    if softcap is not None and not 0 < softcap < math.inf:
        raise bad_value(op, "softcap", softcap, "a positive number")


class Common(CallSpec):
    """What `attention` and `attention_qkvpacked` share: letters, and the rules that these cannot express."""

    dropout_seed: Param | None
    segment_ids: Param | None
    window: tuple[int, int] | None
    scale: float | None
    softcap: float | None
    dropout_p: float

    elsewhere: ClassVar = ELSEWHERE
    independent: ClassVar = ("B", "H")
    letters: ClassVar = {
        "B": Letter("batch"),
        "Q": Letter("queries"),
        "K": Letter("keys"),
        "H": Letter("heads"),
        "G": Letter("key heads", divides="H"),
        "D": Letter("head size", 1, 512),
        "V": Letter("value size", 1, 512),
        "S": Letter("sequences", 1),
    }

    batch = Size("B")
    queries = Size("Q")
    keys = Size("K")
    heads = Size("H")
    groups = Size("G")
    head_size = Size("D")
    value_size = Size("V")
    sequences = Size("S")

    @property
    def threshold(self) -> int:
        """Random numbers below it, of FORMS, drop a probability."""
        return round(self.dropout_p * FORMS)

    @property
    def segmented(self) -> bool:
        """Whether ids of steps tell the sequences apart."""
        return self.segment_ids is not None

    def shape_of(self, name: str) -> str:
        """The slopes of the heads where segments are given: they have no numbers that slopes could be listed by."""
        alone = name == "alibi_slopes" and self.segmented
        return "H" if alone else CallSpec.shape_of(self, name)

    def folds(self, size: int) -> Iterator[Fold]:
        """The calls as rows of one batch; none with dropout, which depends on a row's number."""
        if not self.dropout_p:
            yield from CallSpec.folds(self, size)

    def check(self) -> None:
        """Raise for arguments that do not go together."""
        if self.segmented:
            self._check_segments()
        dropped = self.dropout_p > 0
        if dropped != (self.dropout_seed is not None):
            got, expected = (None, "a seed") if dropped else ("a seed", "None")
            raise bad_value(self.op, "dropout_seed", got, f"{expected}, since dropout_p is {self.dropout_p}")

    def _check_segments(self) -> None:
        """Raise for ids beside boundaries, or with keys that are other steps than the queries."""
        if self.packed:
            given = next(iter(self.limited()))
            raise bad_value(self.op, "segment_ids", "an array", f"None, since {given} is given")
        if self.queries != self.keys:
            expected = f"None, since there are {self.queries} queries and {self.keys} keys"
            raise bad_value(self.op, "segment_ids", "an array", expected)
        steps = self.batch * self.queries
        if known(steps) and steps >= MOST_STEPS:
            expected = f"fewer than {MOST_STEPS} steps in all rows"
            raise bad_value(self.op, "segment_ids", f"{self.batch} rows of {self.queries} steps", expected)

    def check_options(self) -> None:
        """Raise for option values that are invalid for every q, too."""
        CallSpec.check_options(self)
        check_scores(self.op, self.window, self.scale, self.softcap)
        if not 0 <= self.dropout_p < 1 or self.threshold == FORMS:
            raise bad_value(self.op, "dropout_p", self.dropout_p, "at least 0 and less than 1")


@dataclass(frozen=True)
class Spec(Common):
    """Softmax attention with every mask and option that training needs.

    With head h of q, and group g = h // (H / G) of k and v, for query i and key j::

        x[i, j] = scale <q[i], k[j]>                                        softcap tanh(x / softcap) with a softcap
        x[i, j] += bias[i, j] - alibi_slopes[h] |i' - j|                    i' = i + Tk - Tq
        p[i, j] = exp(x[i, j] - lse[i]) for visible j, else 0
        lse[i] = log(sum of exp(x[i, j]) over visible j, + exp(sinks[h]))
        out[i] = sum over j of p[i, j] v[j]                                 p after dropout

    A key is visible if it lies in the query's sequence, with `causal` if j <= i', and with `window` (left, right) if
    i' - left <= j <= i' + right: the last query is aligned with the last key of its sequence. A query that sees no key
    has zeros as its result and gradients, and lse -inf without sinks. Sums are taken in float32. All gradients are
    bitwise reproducible; a query's result depends on nothing but its own sequence up to its last visible key.
    """

    letters: ClassVar = Common.letters | {"D": Letter("head size", 1, 576)}  # 512 and 64 of positions, as in MLA

    q: Param = required(
        "B Q H D",
        *FLOATS,
        doc="""(B, Tq, H, D), float32, bfloat16 or float16, any strides. float64 runs on the
        portable path.""",
    )
    k: Param = required("B K G D", "q", doc="(B, Tk, G, D) in the dtype of q; G divides H.")
    v: Param = required("B K G V", "q", doc="(B, Tk, G, V) in the dtype of q.")
    bias: Param | None = optional(
        "#B #H #Q #K",
        "q",
        "compute_dtype",
        doc="""(B, H, Tq, Tk), each axis also of size 1; like q or float32. Its gradient has its shape: axes of size 1
        are summed in a fixed order.""",
        of_bools=OF_BOOLS,
    )
    alibi_slopes: Param | None = optional("H | S H", "compute_dtype", doc="(H,), or (B, H), float32.")
    sinks: Param | None = optional(
        "H", "compute_dtype", doc="(H,), float32: the logarithm of what each head adds to the sum of exponentials."
    )
    dropout_seed: Param | None = number("int32", doc="the seed of the dropout; needed where dropout_p is not 0.")
    cu_seqlens_q: Param | None = boundaries("q", SLOPES, "cu_seqlens_q", "Tq", "Q")
    cu_seqlens_k: Param | None = boundaries("each of k and v", SLOPES, "cu_seqlens_k", "Tk", "K")
    segment_ids: Param | None = labels(
        "B Q",
        doc="""(B, T) int32 or int64, for Tq = Tk = T and without cu_seqlens: a sequence is a run of steps of a row with
        one id, which is not negative; another run begins where the id differs from that of the step before, and with
        each row. Results and gradients are zero at steps with a negative id. The same as packed sequences, and on a GPU
        the same bits; alibi_slopes is (H,).""",
    )
    causal: bool = option(
        "bool", False, doc="whether a query sees no key after its own position; the last query is at the last key."
    )
    window: tuple[int, int] | None = option(
        "int[]?",
        None,
        doc="""(left, right), how many keys a query sees before and after its own position; -1 for all. The last query
        is at the last key.""",
    )
    scale: float | None = option("float?", None, doc="factor of the products; 1 / sqrt(D) by default.")
    softcap: float | None = option("float?", None, doc="bound of the scaled products.")
    dropout_p: float = option("float", 0.0, doc="share of the probabilities that are dropped, in steps of 2^-16.")
    return_lse: bool = option("bool", False, doc="also return lse.")
    backward: str = option(
        "str",
        "auto",
        choices=("auto", "split", "fused"),
        doc="""the backward algorithm of the kernels: "split" computes dq apart from dk and dv, without a workspace;
        "fused" computes all in one kernel, which adds up dq in a fixed order, in a workspace of float32; "auto" is the
        faster one. With segment_ids "fused" exists on Hopper GPUs alone, in 16 bits and for heads of 32 to 128
        channels; elsewhere "split" runs in its place.""",
    )

    op: ClassVar = "attention"
    divides_time: ClassVar = True
    autocast: ClassVar = ("q",)
    results: ClassVar = (
        Result("out", "B Q H V", "q"),
        Result("lse", "B H Q", "compute_dtype", returned="return_lse"),
    )
    whole: ClassVar = {"return_lse": True}

    RETURNS: ClassVar = """out (B, Tq, H, V) in the dtype of q; with `return_lse`, (out, lse), the logarithm of the sum
        of exponentials (B, H, Tq) in float32, which has a gradient, too."""
    SOURCE: ClassVar = """Dao, FlashAttention-2 (2023), algorithms 1 and 2; dropout by Philox4x32-7 of Salmon et al.,
        Parallel Random Numbers: As Easy as 1, 2, 3 (2011)."""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> q, k = torch.randn(2, 100, 8, 64, requires_grad=True), torch.randn(2, 100, 2, 64)
        >>> out, lse = retrograd.attention(q, k, k, causal=True, window=(31, 0), return_lse=True)
        >>> (out.sum() + lse.sum()).backward()
        >>> out.shape, lse.shape
        (torch.Size([2, 100, 8, 64]), torch.Size([2, 8, 100]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import attention
        >>> q, k = jnp.ones((2, 100, 8, 64)), jnp.ones((2, 100, 2, 64))
        >>> dq = jax.grad(lambda q: attention(q, k, k, causal=True).sum())(q)
        >>> dq.shape
        (2, 100, 8, 64)
        """

    @property
    def factor(self) -> float:
        """The factor of the products."""
        return 1 / math.sqrt(self.head_size) if self.scale is None else self.scale

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """How many keys a query sees before and after its own position; None for all."""
        left, right = self.window or (UNLIMITED, UNLIMITED)
        right = 0 if self.causal else right
        return None if left == UNLIMITED else left, None if right == UNLIMITED else right

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The gradients of the results, the arguments, out and lse."""
        return (*self.gradients_in(), *self.arguments, "out", "lse")

    def check(self) -> None:
        """Raise for boundaries of queries or of keys alone, too."""
        if (self.cu_seqlens_q is None) != (self.cu_seqlens_k is None):
            missing, other = ("q", "k") if self.cu_seqlens_q is None else ("k", "q")
            raise bad_value(self.op, f"cu_seqlens_{missing}", None, f"boundaries, since cu_seqlens_{other} is given")
        Common.check(self)
        if self.heads > MOST_HEADS and known(self.keys) and self.heads > self.keys > 0:
            warnings.warn(LOOKS_TRANSPOSED, stacklevel=2)

    def visible(self) -> int:
        """How many pairs of a query and a key the masks leave to a head.

        Packed sequences count as equally long. Where ids tell sequences apart, a row counts as one sequence.
        """
        sequences = self.sequences if self.packed else 1
        queries, keys = self.queries // sequences, self.keys // sequences
        left, right = self.sides
        if left is None and right is None:
            return sequences * queries * keys
        total = 0
        for place in range(keys - queries, keys):
            low = 0 if left is None else max(0, place - left)
            high = keys - 1 if right is None else min(keys - 1, place + right)
            total += max(0, high - low + 1)
        return sequences * total

    def flops(self, which: Pass) -> int:
        """Of the matrix products: two forward, five backward."""
        pair = self.head_size + self.value_size if which == "fwd" else 3 * self.head_size + 2 * self.value_size
        return 2 * self.batch * self.heads * self.visible() * pair

    def exps(self, which: Pass) -> int:
        """One exponential for each pair."""
        return self.batch * self.heads * self.visible()


OP = Op(
    Spec,
    __package__,
    (
        Implementation(
            f"{__package__}.hopper",
            takes=names(
                "q k v bias sinks cu_seqlens_q cu_seqlens_k segment_ids causal window scale softcap return_lse backward"
            ),
            places=names("dq dk dv"),
        ),
        Implementation(
            f"{__package__}.triton",
            takes=names(
                "q k v bias alibi_slopes sinks dropout_seed cu_seqlens_q cu_seqlens_k segment_ids "
                "causal window scale softcap dropout_p return_lse backward"
            ),
            places=names("dq dk dv"),
        ),
    ),
    functions={"packed": ("attention_qkvpacked",)},
    extra={"jax_like": ("dot_product_attention",), "torch_step": ("attention_step_",)},
)
