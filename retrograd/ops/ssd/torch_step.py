"""`ssd_step_`: a step of generation that overwrites its window, for PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrograd.core.errors import as_tuple, fields_of
from retrograd.core.op import Implementation, Op, names
from retrograd.core.torch.checks import checker
from retrograd.core.torch.launch import launches_directly
from retrograd.core.torch.op import bind
from retrograd.core.torch.passes import prepared_call
from retrograd.core.torch.xp import torch_namespace

from .generation import SSD_STEP
from .op import OP
from .steps import InPlace, Overwriting, SsdWindow

_WINDOW = " ".join(f"window_{name}" for name in SsdWindow._fields)
IN_PLACE = Op(
    Overwriting,
    __package__,
    (Implementation(f"{__package__}.hopper.row", takes=names(f"x dt A B C D dt_bias dt_softplus dt_limit {_WINDOW}")),),
)
_check = checker(InPlace)
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
    tensors = [*(arrays[name] for name in given), *(arrays[name] for name in parts)]  # as InPlace declares them
    if launches_directly(tensors) and not _recorded(tensors) and _stays(window, arrays):
        prepared = prepared_call(IN_PLACE, tensors, tuple(options.values()))
        if prepared.has_kernels:
            if not prepared.started:
                prepared.start()
            y, steps = prepared.run(tensors)
            assert y is not None
            return y, window._replace(steps=steps)
    y, window = SSD_STEP.run(torch_namespace(), _ssd, arrays, options)
    return y, window


def _recorded(tensors: list[Any]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _stays(window: SsdWindow, arrays: dict[str, Any]) -> bool:
    """Whether what is written to the window's arrays stays in them: they are dense, and autocast casts no copy."""
    return all(
        t is arrays[f"window.{name}"] and t.is_contiguous() for name, t in zip(window._fields, window, strict=True)
    )
