"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triton import knobs

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import (
    Array,
    Descriptor,
    Launch,
    Layouts,
    Program,
    Scalar,
    layouts_of,
    read_in_place,
    strides_of,
)
from retrograd.core.spec import Pass, slot_count_of

from .. import passes
from ..arrays import columns
from ..op import Spec
from ..passes import FP32, LEAST_FACTOR, QUERIES_OF_ROWS, runs_of
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import fused as fused_kernels
from . import parameters as parameter_kernels
from .plan import Plan, Tile, has_tiles, planned
from .tuples import Scores, Shared, Sizes, Summed, Tiles

__all__ = ["backward", "forward", "planned", "suits"]

ROWS_OF_SINKS = 1024
SPILLS_OF_RUNS = 80  # more spill instructions of loop invariants, with the loop over tiles that ids of steps need


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtype, the sizes of a head in it, the backward algorithm, and a bias beside ids of
    steps.
    """
    ordered = arch.backend == "cuda"  # other GPUs may start programs in another order
    if which == "bwd" and _fused(spec) and not ordered:
        return False
    if which == "bwd" and spec.segmented and spec.bias is not None:
        return False
    return spec.q.dtype in KERNEL_FLOATS and has_tiles(spec, arch, which)


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
            rows, tiles = 1, slot_count_of(steps, size, steps)
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
        launches += [own.round_dq()] if "dq" in wanted else []
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


def _tiles(spec: Spec, time: int, size: int) -> int:
    """The number of tiles of queries or keys of a row."""
    return slot_count_of(time, size, spec.sequences if spec.packed else None)


class Launches(passes.Launches):
    """Builds the launches of a pass."""

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

    def round_dq(self) -> Launch:
        """Rounds the sums of dq."""
        D = self.spec.head_size
        return self._of_rows(fused_kernels.round_dq, {"SCALE": self.spec.factor, "D": D, "BLOCK_D": columns(D)})

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
