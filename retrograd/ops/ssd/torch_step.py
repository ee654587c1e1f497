"""`ssd_step_` and `ssd_update_`: steps of generation that overwrite what they go on from, for PyTorch."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from retrograd.core.errors import as_tuple, fields_of
from retrograd.core.op import Implementation, Op, names
from retrograd.core.torch.arguments import stay
from retrograd.core.torch.checks import checker
from retrograd.core.torch.op import bind, by_kernels
from retrograd.core.torch.xp import torch_namespace

from .generation import SSD_STEP, SSD_UPDATE
from .op import OP
from .steps import InPlace, Overwriting, SsdWindow, UpdateInPlace

_WINDOW = " ".join(f"window_{name}" for name in SsdWindow._fields)
IN_PLACE = Op(
    Overwriting,
    __package__,
    (Implementation(f"{__package__}.hopper.row", takes=names(f"x dt A B C D dt_bias dt_softplus dt_limit {_WINDOW}")),),
)
UPDATE = Op(
    UpdateInPlace,
    __package__,
    (Implementation(f"{__package__}.triton.update", takes=names("state x dt A B C D z dt_bias dt_softplus dt_limit")),),
)
_UPDATED = UPDATE.arguments  # found out before a compiler traces a call
_check = checker(InPlace)
_check_update = checker(UpdateInPlace)
_ssd = bind(OP)


def ssd_step_(
    window: SsdWindow,
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> tuple[Float[Tensor, "B H P"], SsdWindow]:
    """`ssd_step`, which may overwrite the arrays of `window`: go on from the window that it returns.

    Where `ssd` runs on its kernels for Hopper, a step in place has kernels of its own, with the same bits: they read
    the state once, and write it at every 64th step. Elsewhere, and where a gradient is recorded, it is `ssd_step`.

    Args:
        window, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit: as in `ssd_step`.

    Returns:
        y (B, H, P) in the dtype of x, and the new window.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(1, 5, 8, 64), torch.randn(1, 5, 8), -torch.rand(8)
        >>> B, C = torch.randn(1, 5, 1, 128), torch.randn(1, 5, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], dt_softplus=True)
        >>> last, window = retrograd.ssd_step_(window, x[:, 4], dt[:, 4], A, B[:, 4], C[:, 4], dt_softplus=True)
        >>> bool((last == retrograd.ssd(x, dt, A, B, C, dt_softplus=True)[:, 4]).all())
        True
    """
    given = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    parts = fields_of("ssd_step_", "window", window, SsdWindow)
    arrays, options = _check(parts | given, {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)})
    tensors = [*(arrays[name] for name in given), *(arrays[name] for name in parts)]  # as Overwriting declares them
    found = by_kernels(IN_PLACE, tensors, tuple(options.values())) if stay(parts, arrays) else None
    if found is not None:
        y, steps = found
        return y, window._replace(steps=steps)
    y, window = SSD_STEP.run(torch_namespace(), _ssd, arrays, options)
    return y, window


def ssd_update_(
    state: Float[Tensor, "B H P N"],
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Float[Tensor, " H"] | Float[Tensor, "H P"] | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> tuple[Float[Tensor, "B H P"], Float[Tensor, "B H P N"]]:
    """`ssd_update`, which may overwrite `state`: go on from the state that it returns.

    On a GPU it is one kernel, which reads the state once and writes it once. Elsewhere, and where a gradient is
    recorded, it is `ssd_update`.

    Args:
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit: as in `ssd_update`.

    Returns:
        y (B, H, P) in the dtype of x, and the new state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 8, 64, 128), -torch.rand(8)
        >>> x, dt, B, C = torch.randn(2, 8, 64), torch.randn(2, 8), torch.randn(2, 1, 128), torch.randn(2, 1, 128)
        >>> y, state = retrograd.ssd_update_(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 64]), torch.Size([2, 8, 64, 128]))
    """
    given = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays, options = _check_update(given, {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)})
    tensors = [arrays[name] for name in _UPDATED]
    stays = stay({"state": state}, arrays)
    found = by_kernels(UPDATE, tensors, tuple(options.values())) if stays else None
    if found is not None:
        return found[0], state
    y, state = SSD_UPDATE.run(torch_namespace(), _ssd, arrays, options)
    return y, state
