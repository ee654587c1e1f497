"""The launches of one query of each sequence, and the calls that their kernels support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.program import Array, Descriptor, Launch, Layout, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param, Pass

from ...arrays import columns
from ...step import Query
from .. import launches as hopper
from ..plan import used_columns
from ..tuples import Window
from .place import ROWS
from .plan import QueryPlan, planned
from .tuples import CacheSizes, QueryOptions
from .walk import walk

__all__ = ["forward", "planned", "suits"]

SWIZZLE = 128  # bytes of a row of shared memory that its layout permutes, at most


def suits(spec: Query, arch: Arch, which: Pass) -> bool:
    """Whether `forward` runs the sequence, so that a query has its bits, and a tile has room for a group's heads."""
    if which != "fwd" or 0 in (*spec.q.shape, *spec.k.shape) or spec.batch * spec.capacity >= 2**31:
        return False
    return spec.share <= ROWS.value and hopper.suits(spec.attention, arch, "fwd")


def forward(
    spec: Query, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: QueryPlan
) -> Program:
    """The arguments -> out."""
    inputs, _ = read_in_place(spec.params(names), layouts, in_place)
    of = _Launches(spec, plan, arch, (*inputs, *outputs))
    return Program(inputs, outputs, (), (of.walk(),))


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array without a copy."""
    return is_dense(param.shape, layout.strides) and (layout.aligned or name == "after")


@dataclass(frozen=True)
class _Launches:
    """Builds the launches.

    Attributes:
        spec: the call.
        plan: the tiles.
        arch: the architecture.
        arrays: all arrays.
    """

    spec: Query
    plan: QueryPlan
    arch: Arch
    arrays: tuple[Array, ...]

    def walk(self) -> Launch:
        """Attends to all blocks in one walk."""
        spec, tiles = self.spec, self.plan.walk
        descriptors = {
            "q": self._heads("q", spec.batch * spec.groups, spec.head_size),
            "k": self._blocks("k", columns(spec.head_size)),
            "v": self._blocks("v", tiles.columns),
        }
        slices = -(-spec.value_size // tiles.columns)
        launch = self._launch(walk, spec.batch * spec.groups * slices, descriptors, slices, tiles.stages)
        return replace(launch, max_registers=tiles.registers)

    def _launch(
        self, kernel: Any, grid: int, descriptors: Mapping[str, Descriptor], slices: int = 1, stages: int = 1
    ) -> Launch:
        spec, keys = self.spec, self.plan.keys
        arrays = pointers_to(self.arrays, "after out", **{name: name for name in descriptors})
        of_forward = hopper._Launches(spec.attention, (), {}, self.arch)
        before, _after = of_forward.sides()  # the query is at the last key
        options = QueryOptions(
            window=Window(before, None),
            factors=of_forward._factors(),
            size=used_columns(spec.head_size),
            value_size=spec.value_size,
            keys=keys,
            stages=stages,
        )
        return Launch(
            kernel,
            grid=grid,
            arrays={name: arrays[name] for name in kernel.arg_names if name in arrays},
            scalars={"sizes": CacheSizes(spec.capacity, spec.groups, spec.share, slices, -(-spec.capacity // keys))},
            constants={"OPTIONS": options, "OVERLAP": self.arch.overlaps_launches},
            overlap=self.arch.overlaps_launches,
            descriptors=descriptors,
        )

    def _blocks(self, name: str, own: int) -> Descriptor:
        """A cache in blocks of keys, of so many columns: packed sequences, as `forward` reads them."""
        packed = self.spec.attention[name]
        assert packed is not None
        array = Array(name, packed.shape, packed.dtype)
        found = hopper._Launches(self.spec.attention, (array,), {}, self.arch).described(name, self.plan.keys)
        assert found is not None
        return replace(found, block=(*found.block[:-1], own), layout=_swizzled(own, packed.dtype, len(found.block)))

    def _heads(self, name: str, tiles: int, size: int) -> Descriptor:
        """Rows of a tile, the heads that share a head of keys; rows after these are zeros."""
        dtype = next(array.dtype for array in self.arrays if array.name == name)
        share, own = self.spec.share, columns(size)
        layout = _swizzled(own, dtype, 4)
        return Descriptor((tiles, share, 1, size), (share * size, size, size, 1), (1, ROWS.value, 1, own), layout)


def _swizzled(own: int, dtype: str, axes: int) -> Any:
    """The layout in shared memory of blocks of so many columns."""
    bytes_ = BYTES[dtype]
    return gl.NVMMASharedLayout(min(SWIZZLE, own * bytes_), 8 * bytes_, rank=axes)
