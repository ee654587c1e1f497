"""The functions for generation in PyTorch, which `retrograd` exports beside `ssd`."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrograd.core.errors import as_tuple
from retrograd.core.torch.checks import checker
from retrograd.core.torch.op import bind
from retrograd.core.torch.xp import torch_namespace

from . import generation, portable
from .generation import SsdWindow
from .op import NOT_NEGATIVE, OP
from .steps import ROWS, Prefill, Step, Update, check, names_of

__all__ = ["SsdWindow", "ssd_prefill", "ssd_step", "ssd_update"]

Skip = Float[Tensor, " H"] | Float[Tensor, "H P"]
States = Float[Tensor, "B H P N"]
Limit = tuple[float, float]

_bound = bind(OP)

_check_update, _check_prefill, _check_step = (checker(c, check, names_of(c)) for c in (Update, Prefill, Step))


def ssd_update(
    state: States,
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
) -> tuple[Tensor, Tensor]:
    """One step of `ssd`, for generation: (y, the new state). `state` is not modified.

    The plain recurrence, in float32, in PyTorch operations, so that `torch.compile` fuses it. It rounds differently
    from `ssd`, which multiplies blocks of steps: for the bits of `ssd` use `ssd_step`. No gradient is promised.

    Args:
        state: (B, H, P, N), float32: zeros at first, or a final state of `ssd`.
        x: (B, H, P), float32, bfloat16, float16 or float64.
        dt: (B, H), like x or float32.
        A, D, dt_bias, dt_softplus, dt_limit: as in `ssd`.
        B: (B, G, N), where head h uses group h // (H / G); like x or float32.
        C: as B.
        z: (B, H, P), like x or float32.

    If x is float64, all float32 here is float64.

    Returns:
        y (B, H, P) in the dtype of x, and the new state in the dtype of the old one.

    Raises:
        ValueError, TypeError: as `ssd`.

    Example:
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 8, 64, 128), -torch.rand(8)
        >>> x, dt, B, C = torch.randn(2, 8, 64), torch.randn(2, 8), torch.randn(2, 1, 128), torch.randn(2, 1, 128)
        >>> y, state = retrograd.ssd_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 64]), torch.Size([2, 8, 64, 128]))
    """
    arrays: dict[str, Any] = {
        "state": state,
        "x": x,
        "dt": dt,
        "A": A,
        "B": B,
        "C": C,
        "D": D,
        "z": z,
        "dt_bias": dt_bias,
    }
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    _check_update(arrays, options)
    y, new = portable.update(torch_namespace(), **arrays, **options)
    return y.to(x.dtype), new


def ssd_prefill(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B T H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
    initial_state: States | None = None,
) -> tuple[Float[Tensor, "B T H P"], SsdWindow]:
    """`ssd` on the first steps of a sequence, and the window from which `ssd_step` continues.

    Args:
        x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, initial_state: as in `ssd`; T may be 0.

    Returns:
        y (B, T, H, P), with the bits of `ssd` on all steps, and an `SsdWindow`.

    Raises:
        ValueError, TypeError: as `ssd`.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(2, 200, 8, 64), torch.randn(2, 200, 8), -torch.rand(8)
        >>> B, C = torch.randn(2, 200, 1, 128), torch.randn(2, 200, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :150], dt[:, :150], A, B[:, :150], C[:, :150], dt_softplus=True)
        >>> window.steps
        tensor([22, 22], dtype=torch.int32)
    """
    arrays = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays["initial_state"] = initial_state
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    _check_prefill(arrays, options)
    return generation.prefill(torch_namespace(), _ssd, arrays, options)


def ssd_step(
    window: SsdWindow,
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
) -> tuple[Float[Tensor, "B H P"], SsdWindow]:
    """One step of generation with the bits of training: (y, the window after it).

    y is bitwise equal to that of `ssd` on the whole sequence; this costs a call of `ssd` on 128 steps. `ssd_update` is
    faster, without equal bits. Sequences of a batch may be at different steps. Shapes do not depend on the step, so it
    can be captured in a CUDA graph. Values must be finite.

    Args:
        window: from `ssd_prefill` or the step before. A, D, dt_bias and options must be the same in all these calls.
        x: (B, H, P); x, dt, B and C in the dtypes of those in the window.
        dt: (B, H).
        A, D, dt_bias, dt_softplus, dt_limit: as in `ssd`.
        B: (B, G, N).
        C: as B.
        z: (B, H, P), like x or float32.

    Returns:
        y (B, H, P) in the dtype of x, and the new window.

    Raises:
        ValueError, TypeError: as `ssd`.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(1, 5, 8, 64), torch.randn(1, 5, 8), -torch.rand(8)
        >>> B, C = torch.randn(1, 5, 1, 128), torch.randn(1, 5, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], dt_softplus=True)
        >>> last, window = retrograd.ssd_step(window, x[:, 4], dt[:, 4], A, B[:, 4], C[:, 4], dt_softplus=True)
        >>> bool((last == retrograd.ssd(x, dt, A, B, C, dt_softplus=True)[:, 4]).all())
        True
    """
    window_arrays = generation.arrays_of_window(window)
    arrays = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    _check_step(window_arrays | arrays, options)
    rows = {name: arrays[name] for name in ROWS}
    shared = {"A": A, "D": D, "dt_bias": dt_bias, **options}
    return generation.step(torch_namespace(), _ssd, window, rows, shared, z)


def _ssd(**given: Any) -> Any:
    """All results of `ssd`."""
    return _bound(*OP.complete(given))
