"""One step of generation, or a few, for both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrograd.core.errors import bad_shape, renamed

from .spec import NAME

UPDATE = f"{NAME}_update"


def update(
    causal_conv1d: Callable[..., Any], x: Any, state: Any, weight: Any, bias: Any, activation: Any
) -> tuple[Any, Any]:
    """(y, new_state) of a framework's `causal_conv1d`, from its arrays; x may be a single step."""
    if x.ndim not in (2, 3):
        raise bad_shape(UPDATE, "x", x.shape, "(batch, channels) or (batch, time, channels)")
    single = x.ndim == 2
    try:
        y, new_state = causal_conv1d(
            x[:, None] if single else x,
            weight,
            bias,
            activation=activation,
            initial_state=state,
            return_final_state=True,
        )
    except (TypeError, ValueError) as error:
        renamed(error, {NAME: UPDATE, "initial_state": "state"})
        raise
    return (y[:, 0] if single else y), new_state
