"""The declarations of the functions for generation: a step of the recurrence, a prefill, a step with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from retrograd.core.declaration import Bundle, Letter, Result, required, same_as
from retrograd.core.spec import CallSpec, Param

from .op import BORDER, Spec, check_heads, check_scale


class GatedDeltaRuleWindow(NamedTuple):
    """The state and the steps from which `gated_delta_rule_step` continues.

    Attributes:
        state: (batch, H, V, K), the state at the last border: a multiple of 64 steps. After a prefill of packed
            sequences, the batch is their number.
        k: (batch, 64, G, K), of the steps since the border, in the first `steps` of 64 positions.
        v: (batch, 64, H, V), likewise.
        g: (batch, 64, H) or (batch, 64, H, K), likewise.
        beta: (batch, 64, H), likewise.
        steps: (batch,) int32, the number of steps since the border.
    """

    state: Any
    k: Any
    v: Any
    g: Any
    beta: Any
    steps: Any


WINDOW = {
    "window": Bundle(
        GatedDeltaRuleWindow,
        doc="""from `gated_delta_rule_prefill` or the step before; k, v, g and beta have the dtypes of those in it.
        Options must be the same in all these calls.""",
    )
}
JAX_NOTES = "It calls `gated_delta_rule`: on an NVIDIA GPU that launches the same kernels, elsewhere it is plain JAX."


class _Common(CallSpec):
    """What these calls share with the op."""

    v: Param
    scale: float | None

    autocast: ClassVar = Spec.autocast
    independent: ClassVar = Spec.independent
    letters: ClassVar = Spec.letters

    def check_options(self) -> None:
        """Raise for a scale that is not finite, too."""
        CallSpec.check_options(self)
        check_scale(self, self.scale)

    def check(self) -> None:
        """Raise for heads that key heads do not divide."""
        check_heads(self, self.v)


@dataclass(frozen=True)
class Prefill(_Common):
    """`gated_delta_rule` on the first steps of a sequence, of which there may be none, and the window from which
    `gated_delta_rule_step` goes on.

    It cuts the sequence in two and calls `gated_delta_rule` on each part. Packed sequences may have any lengths; the
    window has a row for each of them.
    """

    q: Param = same_as(Spec, "q", doc="(B, T, G, K), as in `gated_delta_rule`.")
    k: Param = same_as(Spec, "k")
    v: Param = same_as(Spec, "v", doc="(B, T, H, V), in the dtype of q.")
    g: Param = same_as(Spec, "g")
    beta: Param = same_as(Spec, "beta")
    initial_state: Param | None = same_as(Spec, "initial_state")
    cu_seqlens: Param | None = same_as(Spec, "cu_seqlens")
    scale: float | None = same_as(Spec, "scale")
    normalize_qk: bool = same_as(Spec, "normalize_qk")

    op: ClassVar = "gated_delta_rule_prefill"
    letters: ClassVar = Spec.letters | {
        "T": Letter("time", number="a number of steps, which decides what the window holds")
    }
    results: ClassVar = (Result("o", "B T H V", "v"),)
    bundles: ClassVar = WINDOW

    RETURNS: ClassVar = (
        "o (B, T, H, V), with the bits of `gated_delta_rule` on all steps, and a `GatedDeltaRuleWindow`."
    )
    JAX_NOTES: ClassVar = f"{JAX_NOTES} `jax.export` has to be given a number of steps."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> q, k, v = torch.randn(2, 150, 2, 64), torch.randn(2, 150, 2, 64), torch.randn(2, 150, 4, 32)
        >>> g, beta = -torch.rand(2, 150, 4), torch.rand(2, 150, 4)
        >>> o, window = retrograd.gated_delta_rule_prefill(q, k, v, g, beta, normalize_qk=True)
        >>> window.steps
        tensor([22, 22], dtype=torch.int32)
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule_prefill
        >>> q, v, beta = jnp.ones((2, 150, 2, 64)), jnp.ones((2, 150, 4, 32)), jnp.ones((2, 150, 4)) / 2
        >>> o, window = gated_delta_rule_prefill(q, q, v, -beta, beta, normalize_qk=True)
        >>> window.steps.tolist()
        [22, 22]
        """


@dataclass(frozen=True, kw_only=True)
class _Step(_Common):
    """Base of the calls of one step: their arrays have no time axis."""

    q: Param = same_as(Spec, "q", shape="B G K", doc="(B, G, K), float32, bfloat16, float16 or float64.")
    k: Param = same_as(Spec, "k", shape="B G K", doc="as q.")
    v: Param = same_as(Spec, "v", shape="B H V", doc="(B, H, V), in the dtype of q.")
    g: Param = same_as(Spec, "g", shape="B H | B H K", doc="(B, H) or (B, H, K), in the dtype of q or float32.")
    beta: Param = same_as(Spec, "beta", shape="B H", doc="(B, H), as g.")
    scale: float | None = same_as(Spec, "scale")
    normalize_qk: bool = same_as(Spec, "normalize_qk")

    letters: ClassVar = Spec.letters | {"W": Letter("steps")}


@dataclass(frozen=True, kw_only=True)
class Update(_Step):
    """One step of `gated_delta_rule`, for generation: (o, the new state). `state` is not modified.

    The plain recurrence, in float32, in array operations that `torch.compile` and `jax.jit` fuse. It rounds differently
    from `gated_delta_rule`, which multiplies blocks of steps: for its bits use `gated_delta_rule_step`. No gradient is
    promised. If q is float64, all float32 here is float64.
    """

    state: Param = required(
        "B H V K", "compute_dtype", doc="(B, H, V, K), float32: zeros at first, or a final state of `gated_delta_rule`."
    )

    op: ClassVar = "gated_delta_rule_update"
    leading: ClassVar = ("state",)
    results: ClassVar[tuple[Result, ...]] = (
        Result("o", "B H V", "v"),
        Result("new_state", "B H V K", "compute_dtype"),
    )

    RETURNS: ClassVar = "o (B, H, V) in the dtype of v, and the new state in the dtype of the old one."
    JAX_NOTES: ClassVar = "It launches no kernels."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> state, q, k = torch.zeros(2, 4, 32, 64), torch.randn(2, 2, 64), torch.randn(2, 2, 64)
        >>> v, g, beta = torch.randn(2, 4, 32), -torch.rand(2, 4), torch.rand(2, 4)
        >>> o, state = retrograd.gated_delta_rule_update(state, q, k, v, g, beta, normalize_qk=True)
        >>> o.shape, state.shape
        (torch.Size([2, 4, 32]), torch.Size([2, 4, 32, 64]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule_update
        >>> q, v, beta = jnp.ones((2, 2, 64)), jnp.ones((2, 4, 32)), jnp.ones((2, 4)) / 2
        >>> o, state = gated_delta_rule_update(jnp.zeros((2, 4, 32, 64)), q, q, v, -beta, beta, normalize_qk=True)
        >>> o.shape, state.shape
        ((2, 4, 32), (2, 4, 32, 64))
        """

    @property
    def of_channels(self) -> bool:
        """Whether each channel of K has a decay of its own."""
        return len(self.g.shape) == 3


@dataclass(frozen=True, kw_only=True)
class UpdateInPlace(Update):
    """`gated_delta_rule_update` whose state may be overwritten, in PyTorch (`torch_step.py`); its kernel does so."""

    op: ClassVar = "gated_delta_rule_update_"
    results: ClassVar[tuple[Result, ...]] = (Result("o", "B H V", "v"),)


@dataclass(frozen=True, kw_only=True)
class Step(_Step):
    """One step of generation with the bits of training: (o, the window after it).

    o is bitwise equal to that of `gated_delta_rule` on the whole sequence (in JAX without a kernel, only as far as XLA
    compiles both alike); this costs a call of `gated_delta_rule` on 64 steps. `gated_delta_rule_update` is faster,
    without equal bits. Sequences of a batch may be at different steps. Shapes do not depend on the step, so it can be
    captured in a CUDA graph. Values must be finite.
    """

    window_state: Param = required("B H V K", "compute_dtype", doc="")
    window_k: Param = required("B W G K", "k", doc="")
    window_v: Param = required("B W H V", "v", doc="")
    window_g: Param = required("B W H | B W H K", "g", doc="")
    window_beta: Param = required("B W H", "beta", doc="")
    window_steps: Param = required("B", "int32", doc="")

    op: ClassVar = "gated_delta_rule_step"
    leading: ClassVar[tuple[str, ...]] = ("window",)
    results: ClassVar[tuple[Result, ...]] = (Result("o", "B H V", "v"),)
    bundles: ClassVar = WINDOW

    RETURNS: ClassVar = "o (B, H, V) in the dtype of v, and the new window."
    JAX_NOTES: ClassVar = JAX_NOTES
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> q, k, v = torch.randn(1, 5, 2, 64) / 8, torch.randn(1, 5, 2, 64) / 8, torch.randn(1, 5, 4, 32)
        >>> arrays = q, k, v, -torch.rand(1, 5, 4), torch.rand(1, 5, 4)
        >>> o, window = retrograd.gated_delta_rule_prefill(*(x[:, :4] for x in arrays))
        >>> last, window = retrograd.gated_delta_rule_step(window, *(x[:, 4] for x in arrays))
        >>> bool((last == retrograd.gated_delta_rule(*arrays)[:, 4]).all())
        True
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import gated_delta_rule_prefill, gated_delta_rule_step
        >>> q, v, beta = jnp.ones((1, 4, 2, 64)) / 8, jnp.ones((1, 4, 4, 32)), jnp.ones((1, 4, 4)) / 2
        >>> o, window = gated_delta_rule_prefill(q, q, v, -beta, beta)
        >>> o, window = gated_delta_rule_step(window, q[:, 0], q[:, 0], v[:, 0], -beta[:, 0], beta[:, 0])
        >>> int(window.steps[0])
        5
        """

    def bind_sizes(self) -> None:
        """A window has `BORDER` steps."""
        self.sizes["W"] = BORDER

    def shape_of(self, name: str) -> str:
        """The decays in the window are of heads or of channels, as those of the step."""
        forms = super().shape_of(name)
        return forms.split(" | ")[len(self.g.shape) - 2] if name == "window_g" else forms


@dataclass(frozen=True, kw_only=True)
class InPlace(Step):
    """`gated_delta_rule_step` whose window may be overwritten, in PyTorch (`torch_step.py`)."""

    op: ClassVar = "gated_delta_rule_step_"


@dataclass(frozen=True, kw_only=True)
class Overwriting(InPlace):
    """The same as its kernels (`window/`) take it: a window's arrays one by one. They overwrite all but
    `window_steps`.
    """

    leading: ClassVar = ()
    results: ClassVar = (*Step.results, Result("steps", "B", "int32"))
    bundles: ClassVar = {}
