"""One step of generation, or a few, for both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrograd.core.errors import bad_shape

from .spec import NAME


def update(
    causal_conv1d: Callable[..., Any], array: type[Any], x: Any, state: Any, weight: Any, bias: Any, activation: Any
) -> tuple[Any, Any]:
    """(y, new_state) of a framework's `causal_conv1d`, whose arrays are of type `array`; x may be a single step."""
    if isinstance(x, array) and x.ndim not in (2, 3):
        raise bad_shape(f"{NAME}_update", "x", x.shape, "(batch, channels) or (batch, time, channels)")
    single = isinstance(x, array) and x.ndim == 2
    y, new_state = causal_conv1d(
        x[:, None] if single else x, weight, bias, activation=activation, initial_state=state, return_final_state=True
    )
    return (y[:, 0] if single else y), new_state
