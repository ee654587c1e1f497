"""The launches of one query of each sequence, and the calls that their kernels support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triton import next_power_of_2
from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.program import Array, Descriptor, Launch, Layout, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param, Pass

from ...arrays import columns
from ...passes import Launches
from ...step import Query
from .. import launches as hopper
from ..plan import summed_columns
from ..tuples import Window
from .exponentials import exponentials
from .place import PARTS, ROWS
from .plan import QueryPlan, planned
from .score_blocks import score_blocks
from .sum_values import sum_values
from .tuples import CacheSizes, QueryOptions
from .walk import walk

__all__ = ["forward", "planned", "suits"]

FEWEST_ROWS = 8  # of a tile in shared memory, whose layout permutes so many


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
    scratch = tuple(_scratch(spec, plan)) if plan.structure == "blocks" else ()
    of = _Launches(spec, plan, arch, (*inputs, *outputs, *scratch))
    launches = (of.score_blocks(), of.exponentials(), of.sum_values()) if scratch else (of.walk(),)
    return Program(inputs, outputs, scratch, launches)


def _scratch(spec: Query, plan: QueryPlan) -> Iterator[Array]:
    """What the kernels for long caches hand on, of each block; see there."""
    heads, blocks, share = spec.batch * spec.groups, -(-spec.capacity // plan.keys), spec.share
    yield Array("scores", (heads, blocks, share, plan.keys), "float32")
    yield Array("largest", (heads, share, blocks), "float32")
    yield Array("p", (heads, blocks, share, plan.keys), spec.q.dtype)
    yield Array("before", (heads, blocks, ROWS.value), "float32")
    yield Array("parts", (heads, blocks, share, PARTS.value), "float32")


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
        tiles = self.plan.walk
        descriptors = {"q": self._q, "k": self._k, "v": self._blocks("v", tiles.columns)}
        slices = -(-self.spec.value_size // tiles.columns)
        launch = self._launch(walk, self._heads * slices, descriptors, slices=slices, stages=tiles.stages)
        return replace(launch, max_registers=tiles.registers)

    def score_blocks(self) -> Launch:
        """Computes the scores of all blocks."""
        return self._launch(score_blocks, self._heads * self._count, {"q": self._q, "k": self._k})

    def exponentials(self) -> Launch:
        """Computes the softmax of all blocks."""
        span = self.plan.blocks.span
        launch = self._launch(exponentials, self._heads * -(-self._count // span), {})
        return replace(launch, constants={**launch.constants, "SPAN": span})

    def sum_values(self) -> Launch:
        """Computes the sums over blocks."""
        tiles, count = self.plan.blocks, self._heads * self._count
        numbers = gl.NVMMASharedLayout(0, 32, rank=2)
        descriptors = {
            "p": self._tiles("p", count, self.plan.keys, max(FEWEST_ROWS, next_power_of_2(self.spec.share))),
            "before": Descriptor((count, ROWS.value), (ROWS.value, 1), (1, ROWS.value), numbers),
            "parts": self._tiles("parts", count, PARTS.value),
            "v": self._blocks("v", tiles.columns),
        }
        slices = -(-self.spec.value_size // tiles.columns)
        return self._launch(sum_values, self._heads * slices, descriptors, slices=slices, stages=tiles.stages)

    @property
    def _heads(self) -> int:
        """Heads of keys of all rows."""
        return self.spec.batch * self.spec.groups

    @property
    def _count(self) -> int:
        """Blocks of a row."""
        return -(-self.spec.capacity // self.plan.keys)

    def _launch(
        self, kernel: Any, grid: int, descriptors: Mapping[str, Descriptor], slices: int = 1, stages: int = 1
    ) -> Launch:
        spec = self.spec
        names = "after out scores largest p before parts"
        arrays = pointers_to(self.arrays, names, **{name: name for name in descriptors})
        before, _after = Launches(spec.attention, (), {}, self.arch).sides()  # the query is at the last key
        options = QueryOptions(
            window=Window(before, None),
            factors=hopper.factors_of(spec.attention),
            size=summed_columns(spec.head_size),
            value_size=spec.value_size,
            keys=self.plan.keys,
            stages=stages,
        )
        return Launch(
            kernel,
            grid=grid,
            arrays={name: arrays[name] for name in kernel.arg_names if name in arrays},
            scalars={"sizes": CacheSizes(spec.capacity, spec.groups, spec.share, slices, self._count)},
            constants={"OPTIONS": options, "OVERLAP": self.arch.overlaps_launches},
            overlap=self.arch.overlaps_launches,
            descriptors=descriptors,
        )

    @property
    def _q(self) -> Descriptor:
        return self._tiles("q", self._heads, self.spec.head_size)

    @property
    def _k(self) -> Descriptor:
        return self._blocks("k", columns(self.spec.head_size))

    def _blocks(self, name: str, own: int) -> Descriptor:
        """A cache in blocks of keys, of so many columns: packed sequences, as `forward` reads them."""
        packed = self.spec.attention
        arrays = tuple(Array(key, param.shape, param.dtype) for key, param in packed.params((name,)).items())
        found = Launches(packed, arrays, {}, self.arch).described(name, self.plan.keys)
        assert found is not None
        return replace(
            found,
            block=(*found.block[:-1], own),
            layout=hopper.swizzled(own, 8 * BYTES[packed.q.dtype], len(found.block)),
        )

    def _tiles(self, name: str, tiles: int, size: int, rows: int = ROWS.value) -> Descriptor:
        """An array in tiles, whose rows are the heads that share a head of keys; rows after these are zeros."""
        dtype = next(array.dtype for array in self.arrays if array.name == name)
        share, own = self.spec.share, columns(size) if name == "q" else size
        layout = hopper.swizzled(own, 8 * BYTES[dtype], 4)
        return Descriptor((tiles, share, 1, size), (share * size, size, size, 1), (1, rows, 1, own), layout)
