"""The declaration of `dot_product_attention`, which has the arguments of jax's function of that name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import labels, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_type, bad_value
from retrograd.core.spec import CallSpec, Param

from .op import Spec

PAIRS = "#B #H #Q #K | #H #Q #K | #Q #K | #K | "  # an array over pairs of a query and a key


@dataclass(frozen=True)
class DotProduct(CallSpec):
    """A call of `dot_product_attention`; query, key and value have all four axes."""

    query: Param = required("B Q H D", *FLOATS, doc="")
    key: Param = required("B K G D", "query", doc="")
    value: Param = required("B K G V", "query", doc="")
    bias: Param | None = optional(PAIRS, *FLOATS, doc="")
    mask: Param | None = optional(PAIRS, "bool", doc="")
    query_seq_lengths: Param | None = labels("B", doc="")
    key_value_seq_lengths: Param | None = labels("B", doc="")
    scale: float | None = option("float?", None, doc="")
    is_causal: bool = option("bool", False, doc="")
    local_window_size: tuple[int, int] | None = option("int[]?", None, doc="")
    implementation: str | None = option("str?", None, choices=(None,), doc="")
    return_residual: bool = option("bool", False, doc="")

    op: ClassVar = "dot_product_attention"
    letters: ClassVar = {name: letter for name, letter in Spec.letters.items() if name != "S"}

    def check_options(self) -> None:
        """Raise for windows and factors that are none, too."""
        window = self.local_window_size
        if not (window is None or isinstance(window, tuple)):
            raise bad_type(self.op, "local_window_size", window, "an int, a tuple of two ints or None")
        CallSpec.check_options(self)
        if window is not None and (len(window) != 2 or not all(0 <= side < 2**31 for side in window)):
            expected = "one or two numbers of keys, each at least 0 and in 32 bits"
            raise bad_value(self.op, "local_window_size", window, expected)
        if self.scale is not None and not math.isfinite(self.scale):
            raise bad_value(self.op, "scale", self.scale, "a finite number")
