"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from triton import knobs

from retrograd.core.arch import Arch
from retrograd.core.build import INT32_MAX
from retrograd.core.dtypes import BYTES, KERNEL_FLOATS
from retrograd.core.program import (
    Array,
    Descriptor,
    Launch,
    Layouts,
    Program,
    Scalar,
    Strides,
    layouts_of,
    read_in_place,
    strides_of,
)
from retrograd.core.spec import Pass, places_of
from retrograd.core.tiles import warps_of

from ..arrays import STEPS_OF_PACKED as LIMIT
from ..arrays import Heads, Pairs, columns
from ..op import Spec
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import fused as fused_kernels
from . import parameters as parameter_kernels
from . import segments as segment_kernels
from .plan import Plan, Tile, has_tiles, planned
from .tuples import Scores, Shared, Sizes, Summed, Tiles

__all__ = ["backward", "forward", "planned", "suits"]


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtype, the sizes of a head in it, the backward algorithm, and a bias beside ids of
    steps.
    """
    ordered = arch.backend == "cuda"  # other GPUs may start programs in another order
    if which == "bwd" and _fused(spec) and not ordered:
        return False
    if which == "bwd" and spec.segmented and spec.bias is not None:
        return False
    return spec.q.dtype in KERNEL_FLOATS and has_tiles(spec, arch)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> out, lse."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    scratch = tuple(runs_of(spec))
    own = Launches(spec, inputs + outputs + scratch, layouts, arch)
    launches = (*own.of_runs(), own.of_queries(forward_kernels.forward, plan.queries))
    return Program(inputs, outputs, scratch, launches)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results, the arguments, out and lse -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    # No program owns the pairs of two sequences.
    outputs = tuple(replace(array, zeroed=spec.packed and array.name == "dbias") for array in outputs)
    wanted = {array.name: array for array in outputs}
    of_queries = (spec.batch, spec.heads, spec.queries)
    scratch = [*runs_of(spec), Array("delta", of_queries, FP32), Array("base", of_queries, FP32)]
    if "dsinks" in wanted:
        scratch.append(Array("dsinks_partial", (spec.batch, spec.heads), FP32))
    if "dalibi_slopes" in wanted:
        steps, size = spec.batch * spec.queries, plan.queries.queries
        rows, tiles = spec.batch, _tiles(spec, spec.queries, size)
        if spec.segmented:
            rows, tiles = 1, places_of(steps, size, steps)
        scratch.append(Array("dalibi_slopes_partial", (rows, tiles, spec.heads), FP32))
    if "dbias" in wanted and shared_axes(spec) == (True, True):
        tiles = _tiles(spec, spec.queries, plan.pairs.queries)
        scratch.append(Array("dbias_partial", (*wanted["dbias"].shape[:2], tiles), FP32))
    fused = _fused(spec) and bool(wanted.keys() & {"dq", "dk", "dv"})
    if fused:
        tiles = _tiles(spec, spec.queries, plan.fused.queries)
        scratch.append(Array("dq_sum", (spec.batch, spec.queries, spec.heads, spec.head_size), FP32, zeroed=True))
        scratch.append(Array("turns", (spec.batch, spec.heads, tiles), "int32", zeroed=True))
    own = Launches(spec, inputs + outputs + tuple(scratch), {**layouts, **layouts_of(outputs)}, arch)
    launches = [*own.of_runs(), own.deltas()]
    if fused:
        launches.append(own.of_keys(fused_kernels.fused_backward, plan.fused))
        launches += [own.finish()] if "dq" in wanted else []
    elif wanted.keys() & {"dk", "dv"}:
        launches.append(own.of_keys(backward_kernels.keys_backward, plan.keys))
    if fused:  # which has computed dq
        own = replace(own, arrays=tuple(array for array in own.arrays if array.name != "dq"))
    if "dalibi_slopes" in wanted or ("dq" in wanted and not fused):
        launches.append(own.of_queries(backward_kernels.queries_backward, plan.queries))
    if "dbias" in wanted:
        launches.append(own.of_bias(plan.pairs))
    if "dsinks" in wanted:
        launches.append(own.of_sinks())
    partial = (array.name.removesuffix("_partial") for array in scratch if array.name.endswith("_partial"))
    launches += [own.sum_tiles(name, plan.queries.queries) for name in partial]
    return Program(inputs, outputs, tuple(scratch), tuple(launches))


def shared_axes(spec: Spec) -> Shared:
    """The axes of size 1 of the bias."""
    assert spec.bias is not None
    return Shared(spec.bias.shape[2] < spec.queries, spec.bias.shape[3] < spec.keys)


def _fused(spec: Spec) -> bool:
    """Whether one kernel computes dq, dk and dv.

    With ids of steps a program takes several tiles one after the other, and might wait for one that has not started.
    """
    return spec.backward == "fused" and not spec.segmented


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


def _tiles(spec: Spec, time: int, size: int) -> int:
    """The number of tiles of queries or keys of a row."""
    return places_of(time, size, spec.sequences if spec.packed else None)


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
QUERIES_OF_ROWS = 64  # of a program of `deltas` or `finish`
ROWS_OF_SINKS = 1024
STEPS_OF_RUNS = 1024
TILES_AT_ONCE, HEADS_AT_ONCE = 16, 16  # of a program of `sum_tiles`
SPILLS_OF_RUNS = 80  # more spill instructions of loop invariants, with the loop over tiles that ids of steps need
FARTHEST = 2**36  # elements: the limit of the strides of tensor descriptors
LEAST_FACTOR = 2.0**-40  # of products that are scores: sinks are divided by it


@dataclass(frozen=True)
class Launches:
    """Builds the launches of a pass."""

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
        kernels = segment_kernels.count_runs, segment_kernels.list_runs
        return tuple(self.launch(kernel, grid, scalars, constants) for kernel in kernels)

    def deltas(self) -> Launch:
        """Computes the gradient at the sum of exponentials of every query, and the base of its exponents."""
        V = self.spec.value_size
        return self._of_rows(backward_kernels.deltas, {"UNIT": self._unit, "V": V, "BLOCK_V": columns(V)})

    def of_queries(self, kernel: Any, tile: Tile) -> Launch:
        """A launch of a kernel whose programs own tiles of queries, and walk over keys."""
        grid = self._programs(self.spec.queries, tile.queries) * self.spec.heads
        return self._of_pairs(kernel, grid, tile, {"k": tile.keys, "v": tile.keys})

    def of_keys(self, kernel: Any, tile: Tile) -> Launch:
        """A launch of a kernel whose programs own tiles of keys, and walk over queries."""
        grid = self._programs(self.spec.keys, tile.keys) * self.spec.groups
        return self._of_pairs(kernel, grid, tile, {"q": tile.queries, "dout": tile.queries}, heads=self._share)

    def _programs(self, time: int, size: int) -> int:
        """The programs of a head. The number of runs is known on the device only, so with ids there are as many as runs
        of a tile or more need; each takes every so many tiles, see `segments.own_tiles`.
        """
        spec = self.spec
        return 2 * -(-spec.batch * time // size) if spec.segmented else spec.batch * _tiles(spec, time, size)

    def finish(self) -> Launch:
        """Rounds the sums of dq."""
        D = self.spec.head_size
        return self._of_rows(fused_kernels.finish, {"SCALE": self.spec.factor, "D": D, "BLOCK_D": columns(D)})

    def of_bias(self, tile: Tile) -> Launch:
        """Computes the gradient of the bias: a program for each of its tiles, or of its tiles along one axis."""
        spec = self.spec
        assert spec.bias is not None
        shared = shared_axes(spec)
        of_queries, of_keys = (_tiles(spec, *pair) for pair in ((spec.queries, tile.queries), (spec.keys, tile.keys)))
        tiles = of_keys if shared.queries and not shared.keys else of_queries
        if not shared.queries and not shared.keys:
            tiles *= -(-spec.keys // tile.keys)
        rows, heads = spec.bias.shape[:2]
        launch = self._of_pairs(
            parameter_kernels.bias_backward,
            tiles * rows * heads,
            tile,
            {"q": tile.queries, "k": tile.keys, "v": tile.keys, "dout": tile.queries},
            {"summed": Summed(spec.batch if rows == 1 else 1, spec.heads if heads == 1 else 1)},
        )
        return replace(launch, constants={**launch.constants, "SHARED": shared})

    def of_sinks(self) -> Launch:
        """Computes what the queries of a head in a row have of the gradients of sinks."""
        spec = self.spec
        scalars: dict[str, Scalar] = {"rows": spec.queries, "heads": spec.heads, "sequences": spec.sequences}
        kernel = parameter_kernels.sinks_backward
        return self.launch(kernel, spec.batch * spec.heads, scalars, {"BLOCK": ROWS_OF_SINKS})

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
            parameter_kernels.sum_tiles,
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

    def _of_rows(self, kernel: Any, constants: Mapping[str, Any]) -> Launch:
        """A launch of a kernel whose programs own queries of a head, and look at nothing else."""
        spec = self.spec
        scalars: dict[str, Scalar] = {"rows": spec.queries, "heads": spec.heads}
        grid = -(-spec.queries // QUERIES_OF_ROWS) * spec.batch * spec.heads
        return self.launch(kernel, grid, scalars, {**constants, "BLOCK": QUERIES_OF_ROWS})

    def _of_pairs(
        self,
        kernel: Any,
        grid: int,
        tile: Tile,
        walked: Mapping[str, int],
        scalars: Mapping[str, Scalar] | None = None,
        heads: int = 1,
    ) -> Launch:
        """A launch over tiles of pairs.

        Args:
            kernel: takes `Sizes`, `Scores` and `Tiles`.
            grid: its programs.
            tile: its tile.
            walked: array -> steps of its tiles, for those that descriptors may copy.
            scalars: those of the kernel beside its sizes.
            heads: see `Tiles`.
        """
        spec = self.spec
        D, V = spec.head_size, spec.value_size
        described = {name: found for name, steps in walked.items() if (found := self.described(name, steps))}
        if len(described) < len(walked):
            described = {}
        bias = self._described_bias(tile)
        constants = {
            "SCORES": self._scores(None if spec.bias is None else bias is not None),
            "TILES": Tiles(tile.queries, tile.keys, heads, D, V, columns(D), columns(V), bool(described)),
            "SEGMENTED": spec.segmented,
            "IN_PTX": not knobs.runtime.interpret,
        }
        sizes = Sizes(spec.queries, spec.keys, spec.heads, self._share, spec.sequences)
        constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
        descriptors = described | ({"bias": bias} if bias else {})
        launch = self.launch(kernel, grid, {"sizes": sizes, **(scalars or {})}, constants, descriptors)
        spills = tile.spills + SPILLS_OF_RUNS if spec.segmented else tile.spills
        return replace(launch, num_warps=tile.num_warps, num_stages=tile.num_stages, allowed_spills=spills)

    @property
    def _share(self) -> int:
        """Heads of a group."""
        return self.spec.heads // max(self.spec.groups, 1)

    @property
    def _unit(self) -> float:
        """The unit of scores."""
        return 1.0 if self.spec.q.dtype == FP32 else math.log2(math.e)

    def sides(self) -> tuple[int | None, ...]:
        """The window. A side that reaches every key is no limit; its sums with steps might not fit in 32 bits."""
        spec = self.spec
        return tuple(None if side is None or side >= spec.queries + spec.keys else side for side in spec.sides)

    def _scores(self, bias: bool | None) -> Scores:
        """How products become scores; `bias`: whether the bias is a tensor descriptor."""
        spec, unit = self.spec, self._unit
        before, after = self.sides()
        plain = spec.bias is None and spec.alibi_slopes is None
        factor: float | None = spec.factor * unit
        exponent = 1.0
        if spec.softcap is not None:
            factor = spec.factor / spec.softcap
        elif plain and unit != 1.0 and spec.factor > LEAST_FACTOR:
            factor, exponent = None, spec.factor * unit
        return Scores(before, after, factor, unit, spec.softcap, exponent, spec.threshold, bias, spec.factor)

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

    def _described_bias(self, tile: Tile) -> Descriptor | None:
        """The descriptor of the bias; None where there is none, or tiles cannot be copied by one."""
        spec = self.spec
        if spec.bias is None or spec.packed or spec.segmented or shared_axes(spec) != (False, False):
            return None
        array = self._array("bias")
        strides = self._strides_to_describe(array, array.shape, strides_of("bias", array.shape, self.layouts))
        if strides is None:
            return None
        return Descriptor(spec.bias.shape, (*strides, 1), (1, 1, tile.queries, tile.keys))

    def _array(self, name: str) -> Array:
        return next(array for array in self.arrays if array.name == name)

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
