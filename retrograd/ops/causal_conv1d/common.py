"""The common part of the declarations of `causal_conv1d` and `causal_conv1d_update`."""

from __future__ import annotations

from typing import ClassVar

from retrograd.core.declaration import Letter
from retrograd.core.errors import bad_shape
from retrograd.core.spec import CallSpec, Param, Size

ACTIVATIONS = (None, "silu")
MAX_T = 2**31 - 2**18  # steps are counted in int32, and the last tile may end past them


class Convolution(CallSpec):
    """A call that filters x along time."""

    x: Param

    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "D": Letter("channels"),
        "W": Letter("width", 1, 64),
    }

    time = Size("T", 1)  # of all packed sequences together

    def check(self) -> None:
        """Raise for more steps than the kernels can count."""
        if self.time > MAX_T:
            raise bad_shape(self.op, "x", self.x.shape, f"at most {MAX_T} steps of time")
