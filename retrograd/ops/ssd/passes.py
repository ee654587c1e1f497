"""What the implementations share: choice of input arrays, launches over steps, and the last sums of a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.build import divisor
from retrograd.core.kernels.reduce import sum_blocks_launch, sum_rows_launch
from retrograd.core.kernels.sequences import Heads
from retrograd.core.program import Array, Launch, Layout, Layouts, pointers_to, read_in_place, strides_of
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param

from .arrays import Call, Groups, Lengths, Skip
from .op import Spec

FP32 = "float32"
ROWS = ("x", "z", "dy", "B", "C")  # arrays of rows: (batch, time, heads or groups, columns)
SKIPS = ("D", "dD_partial")  # arrays of heads and channels
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
        """Parameter -> array, in the kernel's order; None where it is absent."""
        pointers = pointers_to(self.arrays, names, **others)
        return {name: pointers.get(name) for name in kernel.arg_names if name in pointers or name.endswith("_ptr")}

    def strided(self, arrays: Mapping[str, str | None]) -> dict[str, Heads | Skip]:
        """The strides of those arrays that are named tuples."""
        of = {name: array for name, array in arrays.items() if not name.endswith("_ptr")}
        return {name: self._skip(name) if name in SKIPS else self._heads(array) for name, array in of.items()}

    def _heads(self, name: str | None) -> Heads:
        """An array's strides of batch, time and head or group, in units; zeros for an absent one."""
        param = None if name is None else self.spec["dy" if name == "dy_ungated" else name]
        if name is None or param is None:
            return Heads(None, 0, 0, 0)
        each = self.unit(param) if len(param.shape) == 4 else 1
        batch, step, head = (stride // each for stride in strides_of(name, param.shape, self.layouts)[:3])
        return Heads(None, batch, step, head)

    def _skip(self, name: str) -> Skip:
        """The strides of D, or of the sums of its gradient, in which heads are the inner axis."""
        if self.spec.wide_skip:
            return Skip(None, self.spec.P, 1)
        return Skip(None, 1, 0 if name == "D" else self.spec.heads)

    def unit(self, param: Param) -> int:
        """The unit of the strides of an array of rows, in elements."""
        return unit(param)

    def of_steps(self, kernel: Any, names: str, blocks: int, heads: int, **constants: Any) -> Launch:
        """A launch over step sizes, with a program for each of `blocks` blocks of steps and each `heads` heads."""
        arrays = self.pointers(kernel, names, dt="dt")
        return Launch(
            kernel,
            grid=blocks * -(-self.spec.heads // heads),
            arrays=arrays,
            strided=self.strided(arrays),
            scalars={"call": Call(self.spec.time, self.spec.sequences, *self.spec.limits), "H": self.spec.heads},
            constants={**constants, "OVERLAP": self.arch.overlaps_launches},
            num_warps=4,
            overlap=self.arch.overlaps_launches,
        )

    @property
    def lengths(self) -> Lengths:
        """The numbers of steps and sequences."""
        return Lengths(self.spec.time, self.spec.sequences)

    @property
    def groups(self) -> Groups:
        """The numbers of heads and groups."""
        return Groups(self.spec.heads, self.spec.groups)


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


def of_walk(outputs: tuple[Array, ...]) -> bool:
    """Whether the wanted gradients are those that come of the states' gradients alone."""
    return {array.name for array in outputs} <= {"dx", "dinitial_state"}


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
