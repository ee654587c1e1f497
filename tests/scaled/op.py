from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, number, required
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Param, Pass


@dataclass(frozen=True)
class Spec(CallSpec):
    """y = scale x + seed + 1, without seed 0, without scale 1."""

    x: Param = required("M N", "float32", doc="(M, N), float32.")
    scale: Param | None = number("float32", doc="a factor.")
    seed: Param | None = number("int32", doc="a summand.")

    op: ClassVar = "scaled"
    letters: ClassVar = {"M": Letter("rows"), "N": Letter("columns")}
    results: ClassVar = (Result("y", "M N", "x"),)

    RETURNS: ClassVar = "y (M, N), float32."
    TORCH_EXAMPLE: ClassVar = ""
    JAX_EXAMPLE: ClassVar = ""

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        return ("dy", *self.present(("scale",)))

    def flops(self, which: Pass) -> int:
        return 2 * prod(self.x.shape)


OP = Op(Spec, __package__, (Implementation(f"{__package__}.triton", takes=names("x scale seed")),))
