"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping
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

from ..op import Spec
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import fused as fused_kernels
from . import parameters as parameter_kernels
from .arrays import STEPS_OF_PACKED as LIMIT
from .arrays import Heads, Pairs
from .plan import Plan, Tile, columns, planned

__all__ = ["backward", "forward", "planned", "suits"]


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtype, and the backward algorithm."""
    orders = arch.backend == "cuda"  # other GPUs may start programs in another order
    return spec.q.dtype in KERNEL_FLOATS and (which == "fwd" or spec.backward != "fused" or orders)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> out, lse."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    own = _Launches(spec, inputs + outputs, layouts, arch)
    launch = own.of_queries(forward_kernels.forward, plan.queries)
    return Program(inputs, outputs, (), (launch,))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results, the arguments, out and lse -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    # No program owns the pairs of two sequences.
    outputs = tuple(replace(array, zeroed=spec.packed and array.name == "dbias") for array in outputs)
    wanted = {array.name: array for array in outputs}
    of_queries = (spec.batch, spec.heads, spec.queries)
    scratch = [Array("delta", of_queries, FP32), Array("base", of_queries, FP32)]
    if "dsinks" in wanted:
        scratch.append(Array("dsinks_partial", (spec.batch, spec.heads), FP32))
    if "dalibi_slopes" in wanted:
        tiles = _tiles(spec, spec.queries, plan.queries.queries)
        scratch.append(Array("dalibi_slopes_partial", (spec.batch, tiles, spec.heads), FP32))
    if "dbias" in wanted and shared_axes(spec) == (True, True):
        tiles = _tiles(spec, spec.queries, plan.pairs.queries)
        scratch.append(Array("dbias_partial", (*wanted["dbias"].shape[:2], tiles), FP32))
    fused = spec.backward == "fused" and bool(wanted.keys() & {"dq", "dk", "dv"})
    if fused:
        tiles = _tiles(spec, spec.queries, plan.fused.queries)
        scratch.append(Array("dq_sum", (spec.batch, spec.queries, spec.heads, spec.head_size), FP32, zeroed=True))
        scratch.append(Array("turns", (spec.batch, spec.heads, tiles), "int32", zeroed=True))
    own = _Launches(spec, inputs + outputs + tuple(scratch), {**layouts, **layouts_of(outputs)}, arch)
    launches = [own.deltas()]
    if fused:
        launches.append(own.of_keys(fused_kernels.fused_backward, plan.fused))
        launches += [own.finish()] if "dq" in wanted else []
    elif wanted.keys() & {"dk", "dv"}:
        launches.append(own.of_keys(backward_kernels.keys_backward, plan.keys))
    if "dalibi_slopes" in wanted or ("dq" in wanted and not fused):
        launches.append(own.of_queries(backward_kernels.queries_backward, plan.queries))
    if "dbias" in wanted:
        launches.append(own.of_bias(plan.pairs))
    if "dsinks" in wanted:
        launches.append(own.of_sinks())
    partial = (array.name.removesuffix("_partial") for array in scratch if array.name.endswith("_partial"))
    launches += [own.sum_tiles(name, plan) for name in partial]
    return Program(inputs, outputs, tuple(scratch), tuple(launches))


def shared_axes(spec: Spec) -> tuple[bool, bool]:
    """Whether queries, and keys, share what is added to their scores."""
    assert spec.bias is not None
    return spec.bias.shape[2] < spec.queries, spec.bias.shape[3] < spec.keys


def _tiles(spec: Spec, time: int, size: int) -> int:
    """The number of tiles of queries or keys of a row."""
    return places_of(time, size, spec.sequences if spec.packed else None)


# Parameter -> array, where the names differ.
NAMES = {
    "slopes": "alibi_slopes",
    "seed_ptr": "dropout_seed",
    "cu_q_ptr": "cu_seqlens_q",
    "cu_k_ptr": "cu_seqlens_k",
    "dsinks_ptr": "dsinks_partial",
    "dslopes_ptr": "dalibi_slopes_partial",
    "partial_ptr": "dbias_partial",
    "dq_sum_ptr": "dq_sum",
    "turns_ptr": "turns",
}
ROWS = ("lse", "dlse", "delta", "base")  # arrays (batch, heads, queries)
FP32 = "float32"
ROWS_OF_DELTAS = 64  # queries of a program
ROWS_OF_SINKS = 1024
TILES_AT_ONCE, HEADS_AT_ONCE = 16, 16  # of a program of `sum_tiles`
FARTHEST = 2**36  # elements: the limit of the strides of tensor descriptors
LEAST_FACTOR = 2.0**-40  # of products that are scores: sinks are divided by it


@dataclass(frozen=True)
class _Launches:
    """Builds the launches of a pass."""

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch

    def deltas(self) -> Launch:
        """Computes the gradient at the sum of exponentials of every query, and the base of its exponents."""
        spec = self.spec
        V = spec.value_size
        constants = {"UNIT": self._factors()[1], "V": V, "BLOCK_V": columns(V), "BLOCK": ROWS_OF_DELTAS}
        scalars: dict[str, Scalar] = {"rows": spec.queries, "heads": spec.heads}
        grid = -(-spec.queries // ROWS_OF_DELTAS) * spec.batch * spec.heads
        return self._of(backward_kernels.deltas, grid, scalars, constants)

    def of_queries(self, kernel: Any, tile: Tile) -> Launch:
        """A launch of a kernel whose programs own tiles of queries, and walk over keys."""
        grid = _tiles(self.spec, self.spec.queries, tile.queries) * self.spec.batch * self.spec.heads
        return self._of_pairs(kernel, grid, tile, {"k": tile.keys, "v": tile.keys})

    def of_keys(self, kernel: Any, tile: Tile) -> Launch:
        """A launch of a kernel whose programs own tiles of keys, and walk over queries."""
        grid = _tiles(self.spec, self.spec.keys, tile.keys) * self.spec.batch * self.spec.groups
        return self._of_pairs(kernel, grid, tile, {"q": tile.queries, "dout": tile.queries})

    def finish(self) -> Launch:
        """Rounds the sums of dq."""
        spec = self.spec
        D = spec.head_size
        constants = {"SCALE": spec.factor, "D": D, "BLOCK_D": columns(D), "BLOCK": ROWS_OF_DELTAS}
        scalars: dict[str, Scalar] = {"rows": spec.queries, "heads": spec.heads}
        grid = -(-spec.queries // ROWS_OF_DELTAS) * spec.batch * spec.heads
        return self._of(fused_kernels.finish, grid, scalars, constants)

    def of_bias(self, tile: Tile) -> Launch:
        """Computes the gradient of the bias: a program for each of its tiles, or of its tiles along one axis."""
        spec = self.spec
        assert spec.bias is not None
        over_queries, over_keys = shared_axes(spec)
        of_queries, of_keys = (_tiles(spec, *pair) for pair in ((spec.queries, tile.queries), (spec.keys, tile.keys)))
        tiles = of_keys if over_queries and not over_keys else of_queries
        if not over_queries and not over_keys:
            tiles *= -(-spec.keys // tile.keys)
        rows, heads = spec.bias.shape[:2]
        launch = self._of_pairs(
            parameter_kernels.bias_backward,
            tiles * rows * heads,
            tile,
            {"q": tile.queries, "k": tile.keys, "v": tile.keys, "dout": tile.queries},
            {"summed": (spec.batch if rows == 1 else 1, spec.heads if heads == 1 else 1)},
        )
        constants = {**launch.constants, "OVER_QUERIES": over_queries, "OVER_KEYS": over_keys}
        return replace(launch, constants=constants)

    def of_sinks(self) -> Launch:
        """Computes what the queries of a head in a row have of the gradients of sinks."""
        spec = self.spec
        scalars: dict[str, Scalar] = {"rows": spec.queries, "heads": spec.heads, "sequences": spec.sequences}
        kernel = parameter_kernels.sinks_backward
        return self._of(kernel, spec.batch * spec.heads, scalars, {"BLOCK": ROWS_OF_SINKS})

    def sum_tiles(self, name: str, plan: Plan) -> Launch:
        """Sums what the tiles of queries have of a gradient."""
        spec = self.spec
        arrays = {array.name: array for array in self.arrays}
        partial, out = arrays[f"{name}_partial"], arrays[name]
        # Sums over tiles: of each sequence, of each row and head of a bias, or of all.
        by_sequence = name == "dalibi_slopes" and len(out.shape) == 2
        sequences = out.shape[0] if by_sequence else prod(out.shape) if name == "dbias" else 1
        heads = 1 if name == "dbias" else spec.heads
        tiles = prod(partial.shape) // max(sequences * heads, 1)
        cut = by_sequence and spec.packed
        return Launch(
            parameter_kernels.sum_tiles,
            grid=sequences * -(-heads // HEADS_AT_ONCE),
            arrays={"partial_ptr": partial.name, "cu_q_ptr": "cu_seqlens_q" if cut else None, "out_ptr": name},
            scalars={"tiles": tiles, "sequences": sequences, "heads": heads},
            constants={
                "BLOCK": plan.queries.queries,
                "TILES": TILES_AT_ONCE,
                "BLOCK_H": HEADS_AT_ONCE,
                "OVERLAP": self.arch.overlaps_launches,
            },
            num_warps=warps_of(4, self.arch),
            overlap=self.arch.overlaps_launches,
        )

    def _of_pairs(
        self,
        kernel: Any,
        grid: int,
        tile: Tile,
        walked: Mapping[str, int],
        scalars: Mapping[str, Scalar] | None = None,
    ) -> Launch:
        """A launch over tiles of pairs; `walked`: array -> steps of its tiles, for those that descriptors may copy."""
        spec = self.spec
        D, V = spec.head_size, spec.value_size
        share = spec.heads // max(spec.groups, 1)
        described = {name: self._described(name, steps) for name, steps in walked.items()}
        bias = self._described_bias(tile)
        constants = {
            # A side that reaches every key is no limit; its sums with steps might not fit in 32 bits.
            "SIDES": tuple(None if side is None or side >= spec.queries + spec.keys else side for side in spec.sides),
            "FACTORS": self._factors(),
            "SCALE": spec.factor,
            "DROPPED": spec.threshold,
            "SHARE": share,
            "COLUMNS": (D, V, columns(D), columns(V)),
            "BLOCK_Q": tile.queries,
            "BLOCK_K": tile.keys,
            "DESCRIBED": bool(described) and None not in described.values(),
            "IN_PTX": not knobs.runtime.interpret,
            "BIAS": None if spec.bias is None else bias is not None,
        }
        sizes = (spec.queries, spec.keys, spec.heads, share, spec.sequences)
        constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
        descriptors = {name: each for name, each in described.items() if each and constants.get("DESCRIBED")}
        if bias:
            descriptors["bias"] = bias
        launch = self._of(kernel, grid, {"sizes": sizes, **(scalars or {})}, constants, descriptors)
        return replace(launch, num_warps=tile.num_warps, num_stages=tile.num_stages, allowed_spills=tile.spills)

    def _factors(self) -> tuple[float | None, float, float | None, float]:
        """FACTORS of the kernels, see `forward`."""
        spec = self.spec
        unit = 1.0 if spec.q.dtype == "float32" else math.log2(math.e)
        if spec.softcap is not None:
            return spec.factor / spec.softcap, unit, spec.softcap, 1.0
        plain = spec.bias is None and spec.alibi_slopes is None
        if plain and unit != 1.0 and spec.factor > LEAST_FACTOR:
            return None, unit, None, spec.factor * unit
        return spec.factor * unit, unit, None, 1.0

    def _described(self, name: str, steps: int) -> Descriptor | None:
        """The descriptor of an array (batch, steps, heads, columns); None where tiles cannot be copied by one."""
        array = next(array for array in self.arrays if array.name == name)
        strides = self._strides_to_describe(array)
        if strides is None:
            return None
        block = (1, steps, 1, columns(array.shape[3]))
        if not self.spec.packed:
            return Descriptor(array.shape, (*strides, 1), block)
        # Tile `at` of a sequence of n steps that ends at step e of the row is at (LIMIT, e, LIMIT - n + at): steps
        # behind the sequence's end are behind the limit, so zeros. The strides of the first axis and of the third add
        # up to FARTHEST, and LIMIT * FARTHEST elements to nothing in an address of 64 bits.
        _batch, step, head = strides
        shape = (INT32_MAX, INT32_MAX, LIMIT, *array.shape[2:])
        return Descriptor(shape, (FARTHEST - step, step, step, head, 1), (1, *block))

    def _described_bias(self, tile: Tile) -> Descriptor | None:
        """The descriptor of the bias; None where there is none, or tiles cannot be copied by one."""
        spec = self.spec
        if spec.bias is None or spec.packed or shared_axes(spec) != (False, False):
            return None
        strides = self._strides_to_describe(next(array for array in self.arrays if array.name == "bias"))
        if strides is None:
            return None
        return Descriptor(spec.bias.shape, (*strides, 1), (1, 1, tile.queries, tile.keys))

    def _strides_to_describe(self, array: Array) -> Strides | None:
        """The strides of an array of four axes but for the last; None where no descriptor can have them."""
        if not self.arch.copies_tensors or not array.aligned or 0 in array.shape:
            return None
        unit = 16 // BYTES[array.dtype]
        # The stride of an axis of size 1 is never used.
        valid = zip(array.shape, strides_of(array.name, array.shape, self.layouts), (unit, unit, unit, 1), strict=True)
        *strides, column = (stand_in if size == 1 else stride for size, stride, stand_in in valid)
        if column != 1 or not all(0 < stride < FARTHEST and stride % unit == 0 for stride in strides):
            return None
        return tuple(strides)

    def _of(
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
        if name in ROWS:
            return Heads(None, own[0], own[2], own[1], 0)
        if name == "alibi_slopes":
            return Heads(None, own[0] if len(own) == 2 else 0, 0, own[-1], 0)
        if name == "sinks":
            return Heads(None, 0, 0, own[0], 0)
        batch, step, head, column = own
        return Heads(None, batch, step, head, column)
