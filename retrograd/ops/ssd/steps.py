"""The declarations of the functions for generation: calls of a prefill and of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from retrograd.core.declaration import Letter, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import renamed
from retrograd.core.spec import CallSpec, Param, Params, arguments

from .op import BORDER, LETTERS, NOT_NEGATIVE, Spec, check_limit

ROWS = ("x", "dt", "B", "C")  # arguments with a row per step that later steps need


@dataclass(frozen=True)
class Prefill(Spec):
    """A call of `ssd_prefill`, which cuts sequences in two and calls `ssd` on each part."""

    op: ClassVar = "ssd_prefill"


@dataclass(frozen=True, kw_only=True)
class _Step(CallSpec):
    """Base of the calls of one step: their arrays have no time axis."""

    x: Param = required("B H P", *FLOATS, doc="")
    dt: Param = required("B H", "x", "compute_dtype", doc="")
    A: Param = required("H", "compute_dtype", doc="")
    B: Param = required("B G N", "x", "compute_dtype", doc="")
    C: Param = required("B G N", "x", "compute_dtype", doc="")
    D: Param | None = optional("H | H P", "compute_dtype", doc="")
    z: Param | None = optional("B H P", "x", "compute_dtype", doc="")
    dt_bias: Param | None = optional("H", "compute_dtype", doc="")
    dt_softplus: bool = option("bool", False, doc="")
    dt_limit: tuple[float, float] = option("float[]", NOT_NEGATIVE, doc="")

    letters: ClassVar = {**LETTERS, "W": Letter("steps")}

    def check_options(self) -> None:
        """Raise for a `dt_limit` that is not (low, high) with low <= high, too."""
        CallSpec.check_options(self)
        check_limit(self.op, self.dt_limit)


@dataclass(frozen=True, kw_only=True)
class Update(_Step):
    """A call of `ssd_update`."""

    state: Param = required("B H P N", "compute_dtype", doc="")

    op: ClassVar = "ssd_update"


@dataclass(frozen=True, kw_only=True)
class Step(_Step):
    """A call of `ssd_step`, whose window has the sizes and dtypes of the step."""

    window_state: Param = required("B H P N", "compute_dtype", doc="")
    window_x: Param = required("B W H P", "x", doc="")
    window_dt: Param = required("B W H", "dt", doc="")
    window_B: Param = required("B W G N", "B", doc="")
    window_C: Param = required("B W G N", "C", doc="")
    window_steps: Param = required("B", "int32", doc="")

    op: ClassVar = "ssd_step"

    def bind_sizes(self) -> None:
        """A window has `BORDER` steps."""
        self.sizes["W"] = BORDER


def names_of(call: type[CallSpec]) -> dict[str, str]:
    """Argument -> its name in errors: those of arrays of a window have a dot."""
    return {name: name.replace("window_", "window.") for name in arguments(call)}


def check(call: type[CallSpec], params: Params, options: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError for arrays or options that do not fit together.

    Args:
        call: the declaration.
        params: shapes and dtypes, by the names in errors.
        options: by name.
    """
    names = names_of(call)
    try:
        call.of({argument: params.get(name) for argument, name in names.items()}, options)
    except (ValueError, TypeError) as error:
        renamed(error, {call.op: call.op, **names})
        raise
