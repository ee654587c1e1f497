"""What both implementations share of their passes: launches over arrays with strides, tensor descriptors, sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.build import INT32_MAX
from retrograd.core.dtypes import BYTES
from retrograd.core.program import Array, Descriptor, Launch, Layouts, Scalar, Strides, strides_of
from retrograd.core.tiles import warps_of

from . import runs, sums
from .arrays import STEPS_OF_PACKED as LIMIT
from .arrays import Heads, Pairs, columns
from .op import Spec

# Parameter -> array, where the names differ.
NAMES = {
    "slopes": "alibi_slopes",
    "seed_ptr": "dropout_seed",
    "cu_q_ptr": "cu_seqlens_q",
    "cu_k_ptr": "cu_seqlens_k",
    "ids": "segment_ids",
    "counts_ptr": "run_counts",
    "runs_ptr": "runs",
    "dsinks_ptr": "dsinks_partial",
    "dslopes_ptr": "dalibi_slopes_partial",
    "partial_ptr": "dbias_partial",
    "dq_sum_ptr": "dq_sum",
    "turns_ptr": "turns",
    "base_ptr": "base",
    "delta_ptr": "delta",
    "counter_ptr": "counter",
}
ROWS = ("lse", "dlse", "delta", "base")  # arrays (batch, heads, queries)
FP32 = "float32"
QUERIES_OF_ROWS = 64  # of a program of `deltas` or `round_dq`
STEPS_OF_RUNS = 1024
TILES_AT_ONCE, HEADS_AT_ONCE = 16, 16  # of a program of `sum_tiles`
FARTHEST = 2**36  # elements: the limit of the strides of tensor descriptors
LEAST_FACTOR = 2.0**-40  # of products that are scores: sinks are divided by it


def runs_of(spec: Spec) -> Iterator[Array]:
    """The scratch arrays of the kernels that list the runs of equal ids."""
    if spec.segmented:
        steps = spec.batch * spec.queries
        yield Array("run_counts", (-(-steps // STEPS_OF_RUNS),), "int32")
        yield Array("runs", (steps + 2,), "int32")


def _step(shape: tuple[int, ...], strides: Strides) -> int | None:
    """The stride of the steps of all rows, one after the other; None where they have none."""
    batch, time = shape[:2]
    if time == 1:
        return strides[0]
    return strides[1] if batch == 1 or strides[0] == time * strides[1] else None


@dataclass(frozen=True)
class Launches:
    """Builds the launches of a pass.

    Attributes:
        spec: the call.
        arrays: the arrays of the pass.
        layouts: the layouts of the arrays that may not be dense.
        arch: the architecture.
    """

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch

    def of_runs(self) -> tuple[Launch, ...]:
        """List the runs of equal ids, where there are ids."""
        spec = self.spec
        if not spec.segmented:
            return ()
        scalars: dict[str, Scalar] = {"T": spec.queries, "total": spec.batch * spec.queries}
        grid, constants = -(-spec.batch * spec.queries // STEPS_OF_RUNS), {"BLOCK": STEPS_OF_RUNS}
        kernels = runs.count_runs, runs.list_runs
        return tuple(self.launch(kernel, grid, scalars, constants) for kernel in kernels)

    def sum_tiles(self, name: str, size: int) -> Launch:
        """Sums what the tiles of `size` queries have of a gradient."""
        spec = self.spec
        partial, out = self._array(f"{name}_partial"), self._array(name)
        # Sums over tiles: of each sequence, of each row and head of a bias, or of all.
        by_sequence = name == "dalibi_slopes" and len(out.shape) == 2
        sequences = out.shape[0] if by_sequence else prod(out.shape) if name == "dbias" else 1
        heads = 1 if name == "dbias" else spec.heads
        tiles = prod(partial.shape) // max(sequences * heads, 1)
        cut = by_sequence and spec.packed
        of_runs = spec.segmented and name == "dalibi_slopes"
        if of_runs:
            tiles = spec.batch * spec.queries // size
        return Launch(
            sums.sum_tiles,
            grid=sequences * -(-heads // HEADS_AT_ONCE),
            arrays={
                "partial_ptr": partial.name,
                "cu_q_ptr": "cu_seqlens_q" if cut else None,
                "runs_ptr": "runs" if of_runs else None,
                "out_ptr": name,
            },
            scalars={"tiles": tiles, "sequences": sequences, "heads": heads},
            constants={
                "BLOCK": size,
                "TILES": TILES_AT_ONCE,
                "BLOCK_H": HEADS_AT_ONCE,
                "OVERLAP": self.arch.overlaps_launches,
            },
            num_warps=warps_of(4, self.arch),
            overlap=self.arch.overlaps_launches,
        )

    def sides(self) -> tuple[int | None, ...]:
        """The window. A side that reaches every key is no limit; its sums with steps might not fit in 32 bits."""
        spec = self.spec
        return tuple(None if side is None or side >= spec.queries + spec.keys else side for side in spec.sides)

    def described(self, name: str, steps: int) -> Descriptor | None:
        """The descriptor of an array (batch, steps, heads, columns); None where tiles cannot be copied by one."""
        array = self._array(name)
        shape, own = array.shape, strides_of(name, array.shape, self.layouts)
        if self.spec.segmented:
            if (step := _step(shape, own)) is None:
                return None
            shape, own = (1, shape[0] * shape[1], *shape[2:]), (0, step, *own[2:])
        strides = self._strides_to_describe(array, shape, own)
        if strides is None:
            return None
        block = (1, steps, 1, columns(array.shape[3]))
        if not self.spec.packed and not self.spec.segmented:
            return Descriptor(array.shape, (*strides, 1), block)
        # Tile `at` of a sequence of n steps that ends at step e of the row is at (LIMIT, e, LIMIT - n + at): steps
        # after the sequence's end are after the limit, so zeros. The strides of the first axis and of the third add
        # up to FARTHEST, and LIMIT * FARTHEST elements to nothing in an address of 64 bits.
        _batch, step, head = strides
        shape = (INT32_MAX, INT32_MAX, LIMIT, *array.shape[2:])
        return Descriptor(shape, (FARTHEST - step, step, step, head, 1), (1, *block))

    def _strides_to_describe(self, array: Array, shape: tuple[int, ...], strides: Strides) -> Strides | None:
        """Those strides of an array of this shape, but for the last; None where no descriptor can have them."""
        # float32 needs no tile in shared memory: there are no tensor cores to read it.
        if not self.arch.copies_tensors or not array.aligned or 0 in array.shape or self.spec.q.dtype == FP32:
            return None
        unit = 16 // BYTES[array.dtype]
        # The stride of an axis of size 1 is never used.
        valid = zip(shape, strides, (unit, unit, unit, 1), strict=True)
        *others, column = (stand_in if size == 1 else stride for size, stride, stand_in in valid)
        if column != 1 or not all(0 < stride < FARTHEST and stride % unit == 0 for stride in others):
            return None
        return tuple(others)

    def launch(
        self,
        kernel: Any,
        grid: int,
        scalars: dict[str, Scalar],
        constants: dict[str, Any],
        descriptors: Mapping[str, Descriptor] | None = None,
    ) -> Launch:
        """A launch of a kernel whose parameters are arrays or pointers to them, scalars, and constants in capitals."""
        descriptors = descriptors or {}
        present = {array.name: strides_of(array.name, array.shape, self.layouts) for array in self.arrays}
        parameters = [name for name in kernel.arg_names if name not in scalars and not name.isupper()]
        arrays = {name: NAMES.get(name, name) for name in parameters}
        if "SEGMENTED" in constants and self.spec.segmented:
            arrays |= {"cu_q_ptr": "runs", "cu_k_ptr": "runs"}
        return Launch(
            kernel,
            grid=grid,
            arrays={name: array if array in present else None for name, array in arrays.items()},
            strided={
                name: self._strides(array, present.get(array))
                for name, array in arrays.items()
                if not name.endswith("_ptr") and name not in descriptors
            },
            scalars=scalars,
            constants={**constants, "OVERLAP": self.arch.overlaps_launches},
            overlap=self.arch.overlaps_launches,
            descriptors=descriptors,
        )

    def _array(self, name: str) -> Array:
        return next(array for array in self.arrays if array.name == name)

    def _strides(self, name: str, own: Strides | None) -> Heads | Pairs:
        """The strides of an array as the kernels take them; zeros for an absent one."""
        if name in ("bias", "dbias"):
            shape = self.spec.bias.shape if self.spec.bias else (0, 0, 0, 0)
            spread = (self.spec.batch, self.spec.heads, self.spec.queries, self.spec.keys)
            axes = zip(shape, spread, own or (0, 0, 0, 0), strict=True)
            return Pairs(None, *(0 if size < whole else stride for size, whole, stride in axes))
        if own is None:
            return Heads(None, 0, 0, 0, 0)
        if name == "segment_ids":
            batch, step = own
            return Heads(None, batch, step, 0, 0)
        if name in ROWS:
            batch, head, step = own
            return Heads(None, batch, step, head, 0)
        if name == "alibi_slopes":
            return Heads(None, own[0] if len(own) == 2 else 0, 0, own[-1], 0)
        if name == "sinks":
            return Heads(None, 0, 0, own[0], 0)
        batch, step, head, column = own
        return Heads(None, batch, step, head, column)
