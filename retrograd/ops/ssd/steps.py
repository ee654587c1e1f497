"""The declarations of the functions for generation: a step of the recurrence, a prefill, a step with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from retrograd.core.declaration import Bundle, Letter, Result, required, same_as
from retrograd.core.spec import Param

from .op import BORDER, Common, OfSequence, Spec


class SsdWindow(NamedTuple):
    """The state and the steps from which `ssd_step` continues.

    Attributes:
        state: (batch, H, P, N), the state at the last border: a multiple of 64 steps. After a prefill of packed
            sequences, the batch is their number.
        x: (batch, 64, H, P), of the steps since the border, in the first `steps` of 64 positions.
        dt: (batch, 64, H), likewise.
        B: (batch, 64, G, N), likewise.
        steps: (batch,) int32, the number of steps since the border.
    """

    state: Any
    x: Any
    dt: Any
    B: Any
    steps: Any


WINDOW = {
    "window": Bundle(
        SsdWindow,
        doc="""from `ssd_prefill` or the step before; x, dt and B have the dtypes of those in it. A, D, dt_bias and
        options must be the same in all these calls.""",
    )
}
JAX_NOTES = "It calls `ssd`: on an NVIDIA GPU that launches the same kernels, on a CPU or TPU it is plain JAX."


@dataclass(frozen=True)
class Prefill(OfSequence):
    """`ssd` on the first steps of a sequence, of which there may be none, and the window from which `ssd_step` goes on.

    It cuts the sequence in two and calls `ssd` on each part; in PyTorch, the kernels for Hopper take both in one call
    if no gradient is recorded. Packed sequences may have any lengths; the window has a row for each of them.
    """

    op: ClassVar = "ssd_prefill"
    letters: ClassVar = Common.letters | {
        "T": Letter("time", number="a number of steps, which decides what the window holds")
    }
    results: ClassVar = (Result("y", "B T H P", "x"),)
    bundles: ClassVar = WINDOW

    RETURNS: ClassVar = "y (B, T, H, P), with the bits of `ssd` on all steps, and an `SsdWindow`."
    JAX_NOTES: ClassVar = f"{JAX_NOTES} `jax.export` has to be given a number of steps."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(2, 200, 8, 64), torch.randn(2, 200, 8), -torch.rand(8)
        >>> B, C = torch.randn(2, 200, 1, 128), torch.randn(2, 200, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :150], dt[:, :150], A, B[:, :150], C[:, :150], dt_softplus=True)
        >>> window.steps
        tensor([22, 22], dtype=torch.int32)
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_prefill
        >>> x, dt, B = jnp.ones((2, 150, 8, 64)), jnp.ones((2, 150, 8)), jnp.ones((2, 150, 1, 128))
        >>> y, window = ssd_prefill(x, dt, -jnp.ones(8), B, B)
        >>> window.steps.tolist()
        [22, 22]
        """


@dataclass(frozen=True, kw_only=True)
class _Step(Common):
    """Base of the calls of one step: their arrays have no time axis."""

    x: Param = same_as(Spec, "x", shape="B H P", doc="(B, H, P), float32, bfloat16, float16 or float64.")
    dt: Param = same_as(Spec, "dt", shape="B H", doc="(B, H), like x or float32.")
    A: Param = same_as(Spec, "A")
    B: Param = same_as(Spec, "B", shape="B G N", doc="(B, G, N), as in `ssd`; like x or float32.")
    C: Param = same_as(Spec, "C", shape="B G N", doc="as B.")
    D: Param | None = same_as(Spec, "D")
    z: Param | None = same_as(Spec, "z", shape="B H P", doc="(B, H, P), like x or float32.")
    dt_bias: Param | None = same_as(Spec, "dt_bias")
    dt_softplus: bool = same_as(Spec, "dt_softplus")
    dt_limit: tuple[float, float] = same_as(Spec, "dt_limit")

    letters: ClassVar = Common.letters | {"W": Letter("steps")}


@dataclass(frozen=True)
class AtBorder(Spec):
    """`ssd` on all steps whose final state is that at the last border, by the kernels for Hopper alone."""

    op: ClassVar = "ssd_prefill"
    state_at_border: ClassVar = True


@dataclass(frozen=True, kw_only=True)
class Update(_Step):
    """One step of `ssd`, for generation: (y, the new state). `state` is not modified.

    The plain recurrence, in float32, in array operations that `torch.compile` and `jax.jit` fuse. It rounds differently
    from `ssd`, which multiplies blocks of steps: for the bits of `ssd` use `ssd_step`. No gradient is promised. If x is
    float64, all float32 here is float64.
    """

    state: Param = required(
        "B H P N", "compute_dtype", doc="(B, H, P, N), float32: zeros at first, or a final state of `ssd`."
    )

    op: ClassVar = "ssd_update"
    leading: ClassVar = ("state",)
    results: ClassVar[tuple[Result, ...]] = (
        Result("y", "B H P", "x"),
        Result("new_state", "B H P N", "compute_dtype"),
    )

    RETURNS: ClassVar = "y (B, H, P) in the dtype of x, and the new state in the dtype of the old one."
    JAX_NOTES: ClassVar = "It launches no kernels."
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 8, 64, 128), -torch.rand(8)
        >>> x, dt, B, C = torch.randn(2, 8, 64), torch.randn(2, 8), torch.randn(2, 1, 128), torch.randn(2, 1, 128)
        >>> y, state = retrograd.ssd_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 64]), torch.Size([2, 8, 64, 128]))
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_update
        >>> x, dt, B = jnp.ones((2, 8, 64)), jnp.ones((2, 8)), jnp.ones((2, 1, 128))
        >>> y, state = ssd_update(jnp.zeros((2, 8, 64, 128)), x, dt, -jnp.ones(8), B, B)
        >>> y.shape, state.shape
        ((2, 8, 64), (2, 8, 64, 128))
        """


@dataclass(frozen=True, kw_only=True)
class UpdateInPlace(Update):
    """`ssd_update` whose state may be overwritten, in PyTorch (`torch_step.py`); its kernel does so."""

    op: ClassVar = "ssd_update_"
    results: ClassVar[tuple[Result, ...]] = (Result("y", "B H P", "x"),)


@dataclass(frozen=True, kw_only=True)
class Step(_Step):
    """One step of generation with the bits of training: (y, the window after it).

    y is bitwise equal to that of `ssd` on the whole sequence (in JAX without a kernel, only as far as XLA compiles both
    alike); this costs a call of `ssd` on 64 steps. `ssd_update` is faster, without equal bits. Sequences of a batch
    may be at different steps. Shapes do not depend on the step, so it can be captured in a CUDA graph. Values must be
    finite.
    """

    window_state: Param = required("B H P N", "compute_dtype", doc="")
    window_x: Param = required("B W H P", "x", doc="")
    window_dt: Param = required("B W H", "dt", doc="")
    window_B: Param = required("B W G N", "B", doc="")
    window_steps: Param = required("B", "int32", doc="")

    op: ClassVar = "ssd_step"
    leading: ClassVar[tuple[str, ...]] = ("window",)
    results: ClassVar[tuple[Result, ...]] = (Result("y", "B H P", "x"),)
    bundles: ClassVar = WINDOW

    RETURNS: ClassVar = "y (B, H, P) in the dtype of x, and the new window."
    JAX_NOTES: ClassVar = JAX_NOTES
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(1, 5, 8, 64), torch.randn(1, 5, 8), -torch.rand(8)
        >>> B, C = torch.randn(1, 5, 1, 128), torch.randn(1, 5, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], dt_softplus=True)
        >>> last, window = retrograd.ssd_step(window, x[:, 4], dt[:, 4], A, B[:, 4], C[:, 4], dt_softplus=True)
        >>> bool((last == retrograd.ssd(x, dt, A, B, C, dt_softplus=True)[:, 4]).all())
        True
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_prefill, ssd_step
        >>> x, dt, A, B = jnp.ones((1, 4, 8, 64)), jnp.ones((1, 4, 8)), -jnp.ones(8), jnp.ones((1, 4, 1, 128))
        >>> y, window = ssd_prefill(x, dt, A, B, B)
        >>> y, window = ssd_step(window, x[:, 0], dt[:, 0], A, B[:, 0], B[:, 0])
        >>> int(window.steps[0])
        5
        """

    def bind_sizes(self) -> None:
        """A window has `BORDER` steps."""
        self.sizes["W"] = BORDER


@dataclass(frozen=True, kw_only=True)
class InPlace(Step):
    """`ssd_step` whose window may be overwritten, in PyTorch (`torch_step.py`)."""

    op: ClassVar = "ssd_step_"


@dataclass(frozen=True, kw_only=True)
class Overwriting(InPlace):
    """The same as its kernels (`row/`) take it: a window's arrays one by one. They overwrite all but `window_steps`."""

    leading: ClassVar = ()
    results: ClassVar = (*Step.results, Result("steps", "B", "int32"))
    bundles: ClassVar = {}
