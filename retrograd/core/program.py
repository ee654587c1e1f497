"""A program: which kernels run, in which order, on which arrays, as data.

An implementation returns its launches as a `Program`, without a GPU and without a framework. The launchers
(`core/torch/launch.py`, `core/jax/launch.py`) run it; the tests cross-compile it, or run it in Triton's interpreter.
The functions build its arrays, and the pointers and strides of its launches, from the arrays of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from .dtypes import BYTES
from .spec import Param

Scalar = int | float | tuple[int | float, ...]
Strides = tuple[int, ...]
ALIGNMENT = 16  # bytes: of the addresses of which a kernel may know that they are aligned


@dataclass(frozen=True, slots=True)
class Layout:
    """An array's layout in memory: strides in elements, and whether its first element is on a 16-byte boundary."""

    strides: Strides
    aligned: bool = True


Layouts = Mapping[str, Layout]  # by array name; an array without an entry is dense


@dataclass(frozen=True, slots=True)
class Part:
    """Where an output lies in a larger array, which holds several outputs of one shape side by side along an axis.

    Attributes:
        whole: the name of the larger array; a launcher allocates it and returns it.
        axis: its axis that the output does not have.
        index: the output's index along that axis.
        size: the size of that axis.
    """

    whole: str
    axis: int
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a program reads or writes.

    Attributes:
        name: its name in the launches.
        shape: its shape; an output is allocated dense, unless it is a part of a larger array.
        dtype: a name of `core.dtypes`.
        aligned: whether its first element is on a 16-byte boundary, as in all arrays that a launcher allocates.
        copied: whether the launcher first copies this input into dense memory, because no launch reads its layout.
        zeroed: whether the launcher fills this output or scratch array with zeros before the first launch that uses it.
        part: the place of this output in a larger array; None where it is an array of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    aligned: bool = True
    copied: bool = False
    zeroed: bool = False
    part: Part | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * BYTES[self.dtype]

    @property
    def whole(self) -> Array:
        """The array that a launcher allocates for it: itself, or the larger one."""
        if (part := self.part) is None:
            return self
        shape = (*self.shape[: part.axis], part.size, *self.shape[part.axis :])
        return Array(part.whole, shape, self.dtype, zeroed=self.zeroed)

    @property
    def strides(self) -> Strides:
        """The strides of an output or scratch array, in elements."""
        strides = dense(self.whole.shape)
        return strides if self.part is None else (*strides[: self.part.axis], *strides[self.part.axis + 1 :])

    @property
    def offset(self) -> int:
        """Where it begins in `whole`, in elements."""
        return 0 if self.part is None else self.part.index * prod(self.shape[self.part.axis :])

    def within(self, part: Part) -> Array:
        """The same output as a part of a larger array."""
        placed = replace(self, part=part)
        return replace(placed, aligned=placed.offset * BYTES[self.dtype] % ALIGNMENT == 0)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor: how the tensor memory accelerator (TMA) sees an array. The launcher creates it on the host.

    Attributes:
        shape: of the view that is described, up to five axes.
        strides: its strides in elements; the last is 1, and the others are multiples of 16 bytes.
        block: the shape of one copy.
        layout: Gluon's layout of a block in shared memory; None for a Triton kernel, whose compiler chooses one.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    layout: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: a `@triton.jit` function. Its first parameters are its pointers: those it reads, then those it writes.
        grid: number of CTAs along x; the other two dimensions are not used.
        arrays: every pointer parameter, or field of a parameter of `together` -> array name, or None where an optional
            array is absent.
        descriptors: those parameters of `arrays` that are tensor descriptors and no pointers; their arrays begin on a
            16-byte boundary. Shape and strides are no part of what a kernel is compiled for.
        strided: those parameters of `arrays` that are named tuples, with the array's pointer and its strides -> such a
            tuple with the strides, and None in the pointer's place, which is the first.
        together: kernel parameter that is a named tuple of several entries of `arrays`, each a pointer or in `strided`,
            and none a descriptor -> the tuple's class, whose fields are those entries.
        reads: outputs of the program that an earlier launch has written, and this one only reads.
        scalars: kernel parameter -> value known at launch, None for the strides of an absent array; a tuple of ints is
            passed as one parameter.
        constants: kernel parameter -> value known when the kernel is compiled.
        num_warps: warps per CTA.
        num_stages: depth of the software pipeline that the compiler builds.
        max_registers: upper limit of registers per thread, so that more CTAs fit on a multiprocessor; NVIDIA only.
        allowed_spills: spill instructions that tests allow, for loop invariants of a kernel that uses all registers by
            design.
        overlap: launch while the previous kernel drains; the kernel then has to call `numerics.wait_for_previous`,
            whose docstring says when. Only where `Arch.overlaps_launches`; it does not change results.
        early: an input that the kernel, if its constant EARLY is True, reads before the kernel before it has ended. A
            launcher sets that constant only where its caller promises that nothing is writing the input then.
        thread_wise: whether each vector in memory has at most one element for each thread; the compiler then has no
            choice to make about them, and does not look for one, which can take long (`core.coalesce`). The binary is
            the same.
    """

    kernel: Any
    grid: int
    arrays: Mapping[str, str | None]
    scalars: Mapping[str, Scalar | None] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    max_registers: int | None = None
    allowed_spills: int = 0
    overlap: bool = False
    early: str | None = None
    thread_wise: bool = False
    descriptors: Mapping[str, Descriptor] = field(default_factory=dict)
    strided: Mapping[str, Any] = field(default_factory=dict)
    together: Mapping[str, Any] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        pointers = self.pointers
        if set(pointers) != set(self.arrays):
            raise ValueError(f"{self.kernel.__name__}: the first parameters are {pointers}, not {list(self.arrays)}")

    @property
    def pointers(self) -> list[str]:
        """The keys of `arrays`, in the order of the kernel's parameters and of the fields in them."""
        return fields_of(self.kernel.arg_names, self.together)[: len(self.arrays)]

    def check_values(self) -> None:
        """Raise ValueError unless each parameter of the kernel has a value, and each value one parameter."""
        parameters = self.kernel.arg_names
        values = [*self.arrays, *self.scalars, *self.constants]
        named, fields = (fields_of(names, self.together) for names in (parameters, self.together))
        wrong = {
            "parameters without a value": [
                name for name in named if name not in (self.arrays if name in fields else values)
            ],
            "values without a parameter": [
                *(name for name in (*values, *self.strided) if name not in named),
                *(name for name in (*self.descriptors, *self.together) if name not in parameters),
            ],
            "arrays in several parameters": sorted({name for name in fields if named.count(name) > 1}),
        }
        if any(wrong.values()):
            texts = [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]
            raise ValueError(f"{self.kernel.__name__}: {'; '.join(texts)}")


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Launches in order, with the arrays they read (`inputs`), return (`outputs`) or use in between (`scratch`)."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    scratch: tuple[Array, ...]
    launches: tuple[Launch, ...]

    @property
    def arrays(self) -> dict[str, Array]:
        """Every array by its name."""
        return {array.name: array for array in (*self.inputs, *self.outputs, *self.scratch)}

    @property
    def returned(self) -> tuple[Array, ...]:
        """The arrays that a launcher allocates for the outputs and returns: a larger array once for all of its parts.

        Raises:
            ValueError: the outputs are not all parts of a larger array, or do not agree about it.
        """
        wholes = dict.fromkeys(array.whole for array in self.outputs)
        for whole in wholes:
            parts = [array.part for array in self.outputs if array.part and array.whole == whole]
            if parts and [part.index for part in parts] != list(range(parts[0].size)):
                raise ValueError(f"{whole.name}: has the parts {[part.index for part in parts]} of {parts[0].size}")
        return tuple(wholes)

    def reads_and_writes(self, launch: Launch, written: Container[str]) -> tuple[list[str], list[str]]:
        """The arrays that a launch reads, up to its last pointer to an array in `written`, and those that it writes.

        `written` has the inputs and the arrays that previous launches wrote. An empty array may be read unwritten.

        Raises:
            ValueError: a pointer to an unwritten array that is not empty precedes one to a written array.
        """
        used = [name for name in map(launch.arrays.__getitem__, launch.pointers) if name is not None]
        first = max((place for place, name in enumerate(used, 1) if name in written), default=0)
        reads, writes = used[:first], used[first:]
        early = [name for name in reads if name not in written and self.arrays[name].nbytes]
        if early:
            name = launch.kernel.__name__
            raise ValueError(f"{name}: pointers must name what is read before what is written, got {early} in {used}")
        return reads, writes


def dense(shape: Sequence[int]) -> Strides:
    """Strides of a dense row-major array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def arrays_of(layouts: Layouts, /, **params: Param | None) -> tuple[Array, ...]:
    """The present arrays; each keyword is an array's name."""
    return tuple(
        Array(name, param.shape, param.dtype, layouts[name].aligned if name in layouts else True)
        for name, param in params.items()
        if param is not None
    )


def renamed(launch: Launch, names: Mapping[str, str]) -> Launch:
    """The launch on other arrays: name -> the other one's, for those that change."""
    arrays = {key: None if name is None else names.get(name, name) for key, name in launch.arrays.items()}
    return replace(launch, arrays=arrays, early=None if launch.early is None else names.get(launch.early, launch.early))


def layouts_of(outputs: Iterable[Array]) -> Layouts:
    """The layouts of those outputs that are parts of larger arrays."""
    return {array.name: Layout(array.strides, array.aligned) for array in outputs if array.part is not None}


def read_in_place(
    params: Mapping[str, Param], layouts: Layouts, in_place: Callable[[str, Param, Layout], bool]
) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that its kernels read without a copy.

    The launcher first copies each of the others that may not be dense into dense memory.

    Args:
        params: shapes and dtypes by name.
        layouts: layouts of the arrays that may not be dense.
        in_place: returns whether the kernels read an array of this name, shape and dtype in this layout.
    """
    kept = {
        name: layouts[name]
        for name, param in params.items()
        if name in layouts and in_place(name, param, layouts[name])
    }
    arrays = arrays_of(kept, **params)
    return tuple(replace(a, copied=a.name in layouts and a.name not in kept) for a in arrays), kept


def pointers_to(arrays: Iterable[Array], names: str = "", **others: str | None) -> dict[str, str | None]:
    """Pointer parameter -> array name, None where the array is absent.

    Args:
        arrays: the present arrays.
        names: names of arrays whose parameter is `<name>_ptr`, separated by spaces.
        others: parameter -> array name, or None.
    """
    present = {array.name for array in arrays}
    wanted = {f"{name}_ptr": name for name in names.split()} | others
    return {parameter: name if name in present else None for parameter, name in wanted.items()}


def fields_of(parameters: Iterable[str], together: Mapping[str, Any]) -> list[str]:
    """The parameters, those of `Launch.together` as their fields."""
    return [key for name in parameters for key in (together[name]._fields if name in together else (name,))]


def strides_of(name: str, shape: tuple[int, ...], layouts: Layouts) -> Strides:
    """An array's strides, in elements; those of a dense array where no layout is passed for it."""
    return layouts[name].strides if name in layouts else dense(shape)
