"""A program: which kernels run, in which order, on which arrays, written down as data.

The launches of an implementation are a `Program`, planned without a GPU and without a framework. The launchers
(`core/torch/launch.py`, `core/jax/launch.py`) run it; the tests cross-compile it, or run it in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .dtypes import BYTES

Scalar = int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a program reads or writes.

    Attributes:
        name: what the launches call it.
        shape: its shape; an output is allocated dense, in row-major order.
        dtype: a name of `core.dtypes`.
        aligned: whether its first element lies on a 16-byte boundary. Arrays that a launcher allocates do.
        copied: whether a launcher copies this input into dense memory first, since no launch reads it where it lies.
        zeroed: whether a launcher fills this output or scratch memory with zeros before the first launch that takes it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    aligned: bool = True
    copied: bool = False
    zeroed: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: a `@triton.jit` function. Its first parameters are its pointers, what it reads before what it writes.
        grid: programs along x; the other two dimensions are not used.
        arrays: every pointer parameter -> array name, or None where an optional array is absent.
        scalars: kernel parameter -> value known at launch; a tuple of ints is passed as one parameter.
        constants: kernel parameter -> value known when the kernel is compiled.
        num_warps: warps a program.
        num_stages: depth of the software pipeline that the compiler builds.
        max_registers: registers a thread may take, so that more programs fit on a multiprocessor; NVIDIA only.
        parked: instructions that may put values which no inner loop changes out of the registers and back, for a kernel
            that fills all of them by design.
        overlap: launch while the kernel before it drains; the kernel then has to call `numerics.wait_for_previous`,
            whose docstring says when. Only where `Arch.overlaps_launches`; it changes no result.
    """

    kernel: Any
    grid: int
    arrays: Mapping[str, str | None]
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    max_registers: int | None = None
    parked: int = 0
    overlap: bool = False

    def __post_init__(self) -> None:
        pointers = self.kernel.arg_names[: len(self.arrays)]
        if set(pointers) != set(self.arrays):
            raise ValueError(f"{self.kernel.__name__}: the first parameters are {pointers}, not {list(self.arrays)}")


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Launches in order, with the arrays they read (`inputs`), return (`outputs`) and use between them (`scratch`)."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    scratch: tuple[Array, ...]
    launches: tuple[Launch, ...]

    @property
    def arrays(self) -> dict[str, Array]:
        """Every array by its name."""
        return {array.name: array for array in (*self.inputs, *self.outputs, *self.scratch)}

    def reads_and_writes(self, launch: Launch, there: Container[str]) -> tuple[list[str], list[str]]:
        """Of the arrays of a launch, in order: what it reads, up to the last that is there already; what it writes.

        An empty array may be read though no launch has written it.

        Raises:
            ValueError: another array that is not there yet comes before one that is.
        """
        pointers = launch.kernel.arg_names[: len(launch.arrays)]
        used = [name for name in map(launch.arrays.__getitem__, pointers) if name is not None]
        first = max((place for place, name in enumerate(used, 1) if name in there), default=0)
        reads, writes = used[:first], used[first:]
        early = [name for name in reads if name not in there and self.arrays[name].nbytes]
        if early:
            name = launch.kernel.__name__
            raise ValueError(f"{name}: pointers must name what is read before what is written, got {early} in {used}")
        return reads, writes
