"""What the launches of a pass have in common, whichever kernels they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.arrays import pointers_to, strides_of
from retrograd.core.op import Layouts
from retrograd.core.program import Array, Launch, Scalar

from .spec import Spec


@dataclass(frozen=True)
class Launches:
    """The launches of a pass, whose arrays these are."""

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch

    def pointers(self, kernel: Any, names: str = "", **others: str | None) -> dict[str, str | None]:
        """Pointer parameter -> array, in the kernel's order; None where it is not there."""
        pointers = pointers_to(self.arrays, names, **others)
        return {name: pointers.get(name) for name in kernel.arg_names if name.endswith("_ptr")}

    def of_steps(self, kernel: Any, names: str, blocks: int, heads: int, **constants: int) -> Launch:
        """A program for every one of `blocks` of steps and so many heads, which looks at step sizes."""
        low, high = self.spec.limits
        return Launch(
            kernel,
            grid=blocks * -(-self.spec.heads // heads),
            arrays=self.pointers(kernel, names),
            scalars={
                **self.sizes,
                "dt_strides": strides_of("dt", self.spec.dt.shape, self.layouts),
                "low": low,
                "high": high,
            },
            constants={
                "BLOCK_H": heads,
                "SOFTPLUS": self.spec.dt_softplus,
                "OVERLAP": self.arch.overlaps_launches,
                **constants,
            },
            num_warps=4,
            overlap=self.arch.overlaps_launches,
        )

    @property
    def sizes(self) -> dict[str, Scalar]:
        """Steps, sequences and heads."""
        return {"T": self.spec.time, "sequences": self.spec.sequences, "H": self.spec.heads}
