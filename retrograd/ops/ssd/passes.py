"""What the implementations share: choice of input arrays, launches over steps, and the last sums of a backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.build import divisor
from retrograd.core.kernels.reduce import sum_blocks_launch, sum_rows_launch
from retrograd.core.program import Array, Launch, Layout, Layouts, Scalar, pointers_to, read_in_place, strides_of
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param

from .op import Spec

FP32 = "float32"
ROWS = ("x", "z", "dy", "B", "C")  # arrays of rows: (batch, time, heads or groups, columns)
Read = Callable[[str, Param, Layout], bool]  # whether kernels read the array of this name in place


@dataclass(frozen=True)
class Launches:
    """Builds the launches of a pass.

    Attributes:
        spec: the call.
        arrays: the arrays of the pass.
        layouts: the layouts of the arrays that are read in place.
        arch: the architecture.
    """

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch

    def pointers(self, kernel: Any, names: str = "", **others: str | None) -> dict[str, str | None]:
        """Pointer parameter -> array, in the kernel's order; None where it is absent."""
        pointers = pointers_to(self.arrays, names, **others)
        return {name: pointers.get(name) for name in kernel.arg_names if name.endswith("_ptr")}

    def of_steps(self, kernel: Any, names: str, blocks: int, heads: int, **constants: int) -> Launch:
        """A launch over step sizes, with a program for each of `blocks` blocks of steps and each `heads` heads."""
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
                "OVERLAP": self.arch.overlaps_launches,
                **constants,
            },
            num_warps=4,
            overlap=self.arch.overlaps_launches,
        )

    @property
    def sizes(self) -> dict[str, Scalar]:
        """The numbers of steps, sequences and heads."""
        return {"T": self.spec.time, "sequences": self.spec.sequences, "H": self.spec.heads}


def unit(param: Param) -> int:
    """A number that divides all strides of rows of a dense array: the unit in which kernels receive strides."""
    return divisor(param.shape[-1])


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether kernels read an array without a copy: they are compiled for dense memory."""
    if name == "dt":
        return True
    if name not in ROWS:
        return layout.aligned and is_dense(param.shape, layout.strides)
    *rows, columns = layout.strides
    return layout.aligned and columns == 1 and not any(stride % unit(param) for stride in rows)


def inputs_of(
    spec: Spec, names: tuple[str, ...], layouts: Layouts, read: Read = in_place
) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that it reads in place; the others are copied."""
    return read_in_place(spec.params(names), layouts, read)


def unwanted(spec: Spec, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Scratch arrays for the unwanted gradients that are as large as their arguments.

    These are always computed: a kernel without them would be another binary, in which the compiler fuses other
    multiplications with additions, and a gradient's bits would depend on which other gradients are wanted.
    """
    wanted = {array.name for array in outputs}
    alike = spec.params(("dx", "ddt", "dz", "dinitial_state"))
    return tuple(Array(name, param.shape, param.dtype) for name, param in alike.items() if name not in wanted)


def sums(spec: Spec, outputs: tuple[Array, ...], scratch: tuple[Array, ...], arch: Arch) -> tuple[Launch, ...]:
    """Launches that sum gradients of arguments shared by heads or steps, from the partial sums in `scratch`."""
    wanted = {array.name for array in outputs}
    sizes = {array.name: array.shape for array in scratch}
    launches = []
    for name in ("B", "C"):
        if f"d{name}" in wanted:
            steps, blocks, _ = sizes[f"d{name}_partial"]
            each = blocks // spec.groups
            launches.append(sum_blocks_launch(f"d{name}_partial", f"d{name}", steps, spec.groups, each, spec.N, arch))
    for name in ("A", "dt_bias", "D"):
        if f"d{name}" in wanted:
            rows, columns = sizes[f"d{name}_partial"]
            if name == "D" and not spec.wide_skip:
                # Heads are the inner axis in memory, so channels count as rows and are summed over too.
                rows, columns = rows * columns // spec.heads, spec.heads
            launches.append(sum_rows_launch(f"d{name}_partial", f"d{name}", rows, columns, arch))
    return tuple(launches)
