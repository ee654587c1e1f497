"""One step of generation, or a few, for both frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrograd.core.errors import bad_shape, bad_type, renamed
from retrograd.core.op import Params

from .spec import NAME

UPDATE = f"{NAME}_update"


def update(
    causal_conv1d: Callable[..., Any],
    params_of: Callable[[str, Mapping[str, Any]], Params],
    x: Any,
    state: Any,
    weight: Any,
    bias: Any,
    activation: Any,
) -> tuple[Any, Any]:
    """(y, new_state) of a framework's `causal_conv1d`; `params_of` are the shapes of its arrays. x may be one step."""
    given = params_of(UPDATE, {"x": x, "state": state, "weight": weight, "bias": bias})
    for name in ("x", "state", "weight"):
        if given[name] is None:
            raise bad_type(UPDATE, name, None, "an array")
    shape = given["x"].shape  # type: ignore[union-attr]
    if len(shape) not in (2, 3):
        raise bad_shape(UPDATE, "x", shape, "(batch, channels) or (batch, time, channels)")
    single = len(shape) == 2
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
