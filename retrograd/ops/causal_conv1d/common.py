"""What a call of causal_conv1d and a step of generation have in common."""

from __future__ import annotations

from typing import ClassVar

from retrograd.core.declaration import Letter
from retrograd.core.errors import bad_shape
from retrograd.core.spec import CallSpec, Param, Size

ACTIVATIONS = (None, "silu")
MAX_T = 2**31 - 2**18  # steps are counted in int32, and the last tile may end behind them


class Convolution(CallSpec):
    """A filter over x."""

    x: Param

    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "D": Letter("channels"),
        "W": Letter("width", 1, 64),
    }

    time = Size("T", 1)  # of all packed sequences together

    def check(self) -> None:
        """Raise for more steps than kernels can count."""
        if self.time > MAX_T:
            raise bad_shape(self.op, "x", self.x.shape, f"at most {MAX_T} steps of time")
