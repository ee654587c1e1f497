"""The launches of the Hopper kernels of attention, and the calls that they support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import e, log2, prod
from typing import Any

from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.program import (
    Array,
    Descriptor,
    Launch,
    Layout,
    Layouts,
    Program,
    Scalar,
    dense,
    layouts_of,
    read_in_place,
    strides_of,
)
from retrograd.core.spec import Param, Pass, slot_count_of

from ..arrays import STEPS_OF_PACKED as LIMIT
from ..arrays import columns
from ..op import Spec
from ..passes import LEAST_FACTOR, QUERIES_OF_ROWS, Launches, runs_of
from . import schedule
from .backward_apart import backward_apart
from .backward_both import backward_both
from .backward_dq import backward_dq
from .backward_fused import backward_fused
from .backward_pairs import HALF, backward_pairs
from .bias import copy_bias
from .delta import deltas, round_dq
from .forward import forward as forward_kernel
from .plan import (
    LEAST_SOFTCAP,
    UNIT,
    WIDEST_WITH_BIAS,
    BackwardPlan,
    ForwardPlan,
    WalksPlan,
    algorithm,
    has_tiles,
    in_one_group,
    planned,
    sizes_of,
    steps_of,
    summed_columns,
    used_columns,
)
from .tuples import (
    BackwardOptions,
    BiasSizes,
    DkDvOptions,
    DqOptions,
    Factors,
    ForwardOptions,
    KeySizes,
    ListSizes,
    QuerySizes,
    RowSizes,
    Window,
)
from .wgmma import SUMS_OF_ROW

__all__ = ["backward", "factors_of", "forward", "planned", "suits", "swizzled"]

ENTRY = schedule.ENTRY.value
ALIGNED = schedule.ALIGNED.value
TILES_AT_ONCE = 128  # of a program of `list_tiles`
ROWS_OF_BIAS, KEYS_OF_BIAS = 32, 128  # of a program of `copy_bias`
SWIZZLE = 128  # bytes of a row of shared memory that its layout permutes, at most
ROUNDS = 4  # tiles of a program, at most, that it takes without drawing them


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the architecture, the dtype, the sizes of a head and the scale; in the backward pass the
    algorithm, which for heads to 128 is "fused", for wider ones "split".
    """
    if arch.name != "sm_90" or not arch.copies_tensors or spec.q.dtype not in ("bfloat16", "float16"):
        return False
    if not has_tiles(spec, which) or spec.factor <= LEAST_FACTOR:
        return False
    if which == "bwd" and spec.backward not in ("auto", algorithm(spec)):
        return False
    if which == "bwd" and spec.softcap is not None and spec.softcap < LEAST_SOFTCAP:
        return False
    if spec.segmented and spec.batch * spec.queries >= LIMIT // 2:  # so that tiles are listed with 32 bits
        return False
    if spec.bias is not None and not (which == "fwd" and _takes_bias(spec, spec.bias)):
        return False
    return 0 not in spec.q.shape and 0 not in spec.k.shape


def _takes_bias(spec: Spec, bias: Param) -> bool:
    """Whether the forward pass takes a bias: in q's dtype, one for each key, of heads to 128."""
    narrow = max(sizes_of(spec)) <= WIDEST_WITH_BIAS
    return narrow and bias.dtype == spec.q.dtype and bias.shape[3] == spec.keys


def swizzled(columns: int, bits: int, axes: int) -> gl.NVMMASharedLayout:
    """The layout in shared memory of blocks of so many columns of elements of so many bits."""
    return gl.NVMMASharedLayout(min(SWIZZLE, columns * bits // 8), bits, rank=axes)


def factors_of(spec: Spec) -> Factors:
    """What the scores of a call are multiplied by. A bias is added as it is, to scores in units of 1."""
    if spec.bias is not None:
        if spec.softcap is not None:
            return Factors(spec.factor / spec.softcap, spec.softcap, log2(e))
        return Factors(None, spec.factor, log2(e))
    if spec.softcap is not None:
        return Factors(spec.factor / spec.softcap, spec.softcap * log2(e), 1.0)
    return Factors(None, None, spec.factor * log2(e))


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: ForwardPlan
) -> Program:
    """The arguments -> out, lse."""
    inputs, layouts = _read(spec, names, layouts, arch)
    lists = _tile_lists(spec, {"q": plan.groups * plan.queries})
    scratch = (Array("counter", (1,), "int32", zeroed=_drawn(spec, plan)), *lists)
    scratch += tuple(_padded_bias(spec, inputs, layouts, arch))
    own = _Launches(spec, inputs + outputs + scratch, layouts, arch)
    return Program(inputs, outputs, scratch, (*own.forward(plan),))


def backward(
    spec: Spec,
    names: tuple[str, ...],
    outputs: tuple[Array, ...],
    layouts: Layouts,
    arch: Arch,
    plan: BackwardPlan | WalksPlan,
) -> Program:
    """The gradients of the results, the arguments, out and lse -> the wanted gradients."""
    inputs, layouts = _read(spec, names, layouts, arch)
    wanted = {array.name for array in outputs}
    scratch = [Array(name, (_copies(spec), *_numbers(spec)), "float32") for name in ("base", "delta")]
    if "dsinks" in wanted:
        tiles_of_rows = -(-spec.queries // QUERIES_OF_ROWS)
        scratch.append(Array("dsinks_partial", (spec.batch * tiles_of_rows, spec.heads), "float32"))
    if isinstance(plan, WalksPlan):
        scratch += _scratch_of_walks(spec, plan, wanted)
    elif wanted & {"dq", "dk", "dv"}:
        scratch += _scratch_of_sums(spec, plan, wanted)
    own = _Launches(spec, inputs + outputs + tuple(scratch), {**layouts, **layouts_of(outputs)}, arch)
    launches = [own.deltas()]
    if isinstance(plan, WalksPlan):
        launches += own.walks(plan, wanted)
    elif wanted & {"dq", "dk", "dv"}:
        launches += own.backward(plan)
        launches += [own.round_dq(plan)] if "dq" in wanted else []
    if "dsinks" in wanted:
        launches.append(own.sum_tiles("dsinks", QUERIES_OF_ROWS))
    return Program(inputs, outputs, tuple(scratch), tuple(launches))


def _drawn(spec: Spec, plan: ForwardPlan) -> bool:
    """Whether programs draw their tiles by a counter.

    In a short call it would take a while to clear one, and who draws a tile as it begins another does not know who is
    done first. Where no tiles are listed, their order is that of their lengths: rounds there and back are more even.
    """
    tiles = _rows(spec, spec.heads) * _tiles(spec, spec.queries, plan.groups * plan.queries)
    return _listed(spec) or tiles > ROUNDS * plan.programs


def _scratch_of_sums(spec: Spec, plan: BackwardPlan, wanted: set[str]) -> Iterator[Array]:
    """The scratch arrays of one walk for all gradients, which computes dk and dv in any case."""
    turns = _rows(spec, spec.heads) * _tiles(spec, spec.queries, plan.queries) * (plan.queries // HALF.value)
    yield Array("turns", (1 + turns,), "int32", zeroed=True)
    padded = -(-spec.head_size // SUMS_OF_ROW.value) * SUMS_OF_ROW.value
    yield Array("dq_sum", (*spec.q.shape[:-1], padded), "float32")
    yield from _unwanted(spec, wanted)
    yield from _tile_lists(spec, {"k": plan.keys})


def _scratch_of_walks(spec: Spec, plan: WalksPlan, wanted: set[str]) -> Iterator[Array]:
    """The scratch arrays of walks for the wanted gradients; one for dk and dv computes both in any case."""
    if "k" in _owned(wanted):
        yield from _unwanted(spec, wanted)
    yield Array("counter", (2,), "int32", zeroed=True)
    yield from _tile_lists(spec, _tiles_of_walks(spec, plan, wanted))


def _tiles_of_walks(spec: Spec, plan: WalksPlan, wanted: set[str]) -> dict[str, int]:
    """The sides whose tiles walks own, and how many queries or keys a tile has."""
    return {own: _keys_of_walk(spec, plan) if own == "k" else 2 * plan.rows for own in _owned(wanted)}


def _keys_of_walk(spec: Spec, plan: WalksPlan) -> int:
    """The keys of a tile whose dk and dv a walk computes: of both groups of warps, or the same of each."""
    return 2 * plan.rows if in_one_group(spec) else plan.rows


def _unwanted(spec: Spec, wanted: set[str]) -> Iterator[Array]:
    """Those of dk and dv that are not wanted."""
    params = spec.params(("k", "v"))
    yield from (Array(f"d{n}", params[n].shape, params[n].dtype) for n in "kv" if f"d{n}" not in wanted)


def _owned(wanted: set[str]) -> str:
    """The sides of pairs whose gradients are wanted, q and k; v is of the side of k."""
    return "".join(own for own, names in (("q", {"dq"}), ("k", {"dk", "dv"})) if names & wanted)


def _rows(spec: Spec, heads: int) -> int:
    """The number of rows of tiles: where ids tell sequences apart, the rows of the batch are one."""
    return heads if spec.segmented else spec.batch * heads


def _steps(spec: Spec, time: int) -> int:
    """The steps of such a row."""
    return spec.batch * time if spec.segmented else time


def _tiles(spec: Spec, time: int, size: int) -> int:
    """The number of tiles of queries or keys of a head; where ids tell sequences apart, the largest that it can be.

    Steps before the first packed sequence, and after the last, have tiles, too.
    """
    steps = _steps(spec, time)
    if spec.segmented:
        return slot_count_of(steps, size, steps)
    return slot_count_of(steps, size, spec.sequences + 2 if spec.packed else None)


def _numbers(spec: Spec) -> tuple[int, int]:
    """The shape of an array of numbers of queries: rows a multiple of 16 bytes long, as tensor descriptors need."""
    return _rows(spec, spec.heads), -(-_steps(spec, spec.queries) // ALIGNED) * ALIGNED


def _listed(spec: Spec) -> bool:
    """Whether tiles are listed, since sequences begin anywhere."""
    return spec.packed or spec.segmented


def _copies(spec: Spec) -> int:
    """Copies of numbers of queries, each a step further: in one of them a sequence's tiles begin where TMA can."""
    return ALIGNED if _listed(spec) else 1


def _tile_lists(spec: Spec, sizes: Mapping[str, int]) -> Iterator[Array]:
    """The scratch arrays in which tiles are listed, of so many queries, "q", or keys, "k"."""
    if _listed(spec):
        yield from runs_of(spec)
        times = {"q": spec.queries, "k": spec.keys}
        for own, size in sizes.items():
            yield Array(f"tile_list_{own}", (_tiles(spec, times[own], size), ENTRY), "int32")


def _read(spec: Spec, names: tuple[str, ...], layouts: Layouts, arch: Arch) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads; those that tensor descriptors cannot take are copied before."""

    def in_place(name: str, param: Param, layout: Layout) -> bool:
        if name not in ("q", "k", "v", "dout"):
            return True
        one = Array(name, param.shape, param.dtype, aligned=layout.aligned)
        return Launches(spec, (one,), {name: layout}, arch).described(name, 1) is not None

    return read_in_place(spec.params(names), layouts, in_place)


def _padded_bias(spec: Spec, inputs: tuple[Array, ...], layouts: Layouts, arch: Arch) -> Iterator[Array]:
    """The scratch array of a copy of the bias, where no tensor descriptor can take it: its rows are a multiple of 16
    bytes long.
    """
    if spec.bias is not None and not _listed(spec) and _Launches(spec, inputs, layouts, arch).bias_in_place() is None:
        *others, keys = _distinct(spec.bias.shape, strides_of("bias", spec.bias.shape, layouts))
        yield Array("padded_bias", (*others, -(-keys // UNIT) * UNIT), spec.bias.dtype)


def _distinct(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a bias in which what a stride of 0 repeats is there once."""
    return tuple(1 if n < 3 and strides[n] == 0 else size for n, size in enumerate(shape))


class _Launches(Launches):
    """Builds the launches of a pass."""

    def bias_in_place(self) -> Descriptor | None:
        """The descriptor of the bias; None where none can take it."""
        array = self._array("bias")
        own = strides_of("bias", array.shape, self.layouts)
        if any(stride % UNIT for stride in own[:3]):  # of axes of size 1, too: the number of rows changes no launch
            return None
        shape = _distinct(array.shape, own)
        strides = self._strides_to_describe(array, shape, own)
        return None if strides is None else Descriptor(shape, (*strides, 1), (1, 1, 1, 1))

    def copy_bias(self) -> Launch:
        """Copies the bias to rows that a tensor descriptor can take."""
        batch, heads, queries, pitch = self._array("padded_bias").shape
        keys = self.spec.keys
        tiles = -(-queries // ROWS_OF_BIAS) * -(-keys // KEYS_OF_BIAS)
        sizes = BiasSizes(heads, queries, keys, pitch)
        constants = {"ROWS": ROWS_OF_BIAS, "KEYS": KEYS_OF_BIAS}
        launch = self.launch(copy_bias, batch * heads * tiles, {"sizes": sizes}, constants)
        return self._with(launch, padded_bias_ptr="padded_bias")

    def list_tiles(self, own: str, size: int) -> tuple[Launch, ...]:
        """Lists the tiles of so many packed queries, "q", or of keys, "k"."""
        spec = self.spec
        if not _listed(spec):
            return ()
        other = "k" if own == "q" else "q"
        time = {"q": spec.queries, "k": spec.keys}
        tiles = _tiles(spec, time[own], size)
        sizes = ListSizes(time[own], time[other], spec.sequences, tiles)
        arrays: dict[str, str | None] = {"cu_ptr": f"cu_seqlens_{own}", "other_ptr": f"cu_seqlens_{other}"}
        if spec.segmented:
            total = _steps(spec, spec.queries)
            sizes, arrays = ListSizes(total, total, 0, tiles), dict.fromkeys(arrays)
        constants = {"BLOCK": size, "TILES": TILES_AT_ONCE}
        launch = self.launch(schedule.list_tiles, -(-tiles // TILES_AT_ONCE), {"sizes": sizes}, constants)
        return (self._with(launch, tile_list_ptr=f"tile_list_{own}", **arrays),)

    def _with(self, launch: Launch, **arrays: str | None) -> Launch:
        """A launch with other arrays as parameters, where a call has them."""
        present = {array.name for array in self.arrays}
        found = {parameter: name if name in present else None for parameter, name in arrays.items()}
        return replace(launch, arrays={**launch.arrays, **found})

    def forward(self, plan: ForwardPlan) -> Iterator[Launch]:
        """Computes out and lse."""
        spec = self.spec
        size = plan.groups * plan.queries
        tiles = _tiles(spec, spec.queries, size)
        yield from self.of_runs()
        yield from self.list_tiles("q", size)
        reads_bias = spec.bias is not None and _listed(spec)
        bias, of_bias = None, None
        if spec.bias is not None and not reads_bias:
            bias, of_bias = self._bias(plan)
            if of_bias != "bias":
                yield self.copy_bias()
        steps = {"q": plan.queries, "k": plan.keys, "v": plan.keys, "out": plan.queries}
        rows, share = _rows(spec, spec.heads), spec.heads // spec.groups
        bytes_of_group = 2 * steps_of(spec, spec.keys) * (spec.head_size + spec.value_size)
        section = min(rows, share * max(1, plan.section // bytes_of_group))
        drawn = int(_drawn(spec, plan))
        sizes = QuerySizes(spec.queries, spec.keys, spec.heads, share, tiles, rows, section, drawn)
        options = ForwardOptions(
            window=self._window(),
            factors=factors_of(self.spec),
            size=summed_columns(spec.head_size),
            panels=plan.panels,
            queries=plan.queries,
            keys=plan.keys,
            stages=plan.stages,
            groups=plan.groups,
            queued=plan.queued,
            registers=plan.registers,
            beside=plan.beside,
            by_warps=plan.by_warps,
            reads_bias=reads_bias,
        )
        constants = {"OPTIONS": options}
        grid = min(rows * tiles, plan.programs)
        descriptors = self._described(steps)
        if bias is not None:
            descriptors["bias"] = bias
        if plan.panels > 1:
            width = used_columns(spec.head_size) // plan.panels
            descriptors |= {n: replace(descriptors[n], block=(*descriptors[n].block[:-1], width)) for n in "qk"}
        launch = self.launch(forward_kernel, grid, {"sizes": sizes}, constants, descriptors)
        launch = replace(launch, num_warps=4, allowed_spills=plan.spills)
        if not reads_bias:
            strided = {name: own for name, own in launch.strided.items() if name != "bias"}
            launch = self._with(replace(launch, strided=strided), bias=of_bias)
        yield self._with(launch, tile_list_ptr="tile_list_q")

    def _bias(self, plan: ForwardPlan) -> tuple[Descriptor, str]:
        """The descriptor of the bias, in blocks of a group's queries, and the array that it is of."""
        found, name = self.bias_in_place(), "bias"
        if found is None:
            name = "padded_bias"
            shape = self._array(name).shape
            found = Descriptor((*shape[:3], self.spec.keys), dense(shape), ())
        rows = plan.queries if found.shape[2] > 1 else 1
        # One row is read as it is; rows are, without bank conflicts, in the layout that products of 16 bits have.
        layout = swizzled(plan.keys, 16, 4) if rows > 1 else gl.NVMMASharedLayout(0, 16, rank=4)
        return replace(found, block=(1, 1, rows, plan.keys), layout=layout), name

    def deltas(self) -> Launch:
        """Computes the numbers of queries that the walk reads, and parts of the gradient of sinks."""
        V = self.spec.value_size
        constants = {"WINDOW": self._window(), "V": V, "BLOCK_V": columns(V), "COPIES": _copies(self.spec)}
        return self._of_queries(deltas, constants)

    def round_dq(self, plan: BackwardPlan) -> Launch:
        """Rounds the sums of dq."""
        D = self.spec.head_size
        tiles = {"WINDOW": self._window(), "QUERIES": plan.queries, "KEYS": plan.keys}
        constants = {"SCALE": self.spec.factor, "D": D, "BLOCK_D": columns(D), **tiles}
        launch = self._of_queries(round_dq, constants)
        return self._with(launch, turns_ptr=None) if _listed(self.spec) else launch

    def _of_queries(self, kernel: Any, constants: dict[str, Any]) -> Launch:
        spec = self.spec
        pitch = _numbers(spec)[1]
        sizes = RowSizes(spec.queries, spec.keys, spec.heads, spec.sequences, pitch, prod(_numbers(spec)))
        constants = {**constants, "BLOCK": QUERIES_OF_ROWS, "FLAT": spec.segmented}
        grid = spec.batch * spec.heads * -(-spec.queries // QUERIES_OF_ROWS)
        return self.launch(kernel, grid, {"sizes": sizes}, constants)

    def backward(self, plan: BackwardPlan) -> Iterator[Launch]:
        """Computes dk, dv and the sums of dq."""
        spec = self.spec
        yield from self.of_runs()
        yield from self.list_tiles("k", plan.keys)
        blocks = {"q": plan.queries, "dout": plan.queries, "k": plan.keys}
        blocks |= dict.fromkeys(("v", "dk", "dv"), plan.keys // 2)
        descriptors = {**self._described(blocks), **self._described_numbers(plan.queries)}
        descriptors |= self._described({"dq_sum": HALF.value}, bits=32)
        rows, share = _rows(spec, spec.groups), spec.heads // spec.groups
        bytes_of_group = share * steps_of(spec, spec.queries) * (6 * spec.head_size + 2 * spec.value_size)
        section = min(rows, max(1, plan.section // bytes_of_group))
        tiles, tiles_q = _tiles(spec, spec.keys, plan.keys), _tiles(spec, spec.queries, plan.queries)
        sizes = KeySizes(spec.queries, spec.keys, spec.heads, tiles, tiles_q, rows, section)
        q_stages, dout_stages = plan.stages
        options = BackwardOptions(
            window=self._window(),
            factors=factors_of(self.spec),
            scale=spec.factor,
            share=share,
            size=summed_columns(spec.head_size),
            value_size=summed_columns(spec.value_size),
            keys=plan.keys,
            queries=plan.queries,
            q_stages=q_stages,
            dout_stages=dout_stages,
            listed=_listed(spec),
            registers=plan.registers,
        )
        constants = {"OPTIONS": options}
        grid = min(rows * tiles, plan.programs)
        kernel = backward_pairs if plan.queries > HALF.value else backward_fused
        launch = self.launch(kernel, grid, {"sizes": sizes}, constants, descriptors)
        yield self._with(replace(launch, num_warps=4, allowed_spills=plan.spills), tile_list_ptr="tile_list_k")

    def walks(self, plan: WalksPlan, wanted: set[str]) -> Iterator[Launch]:
        """Compute dq, dk and dv, those that are wanted."""
        own = _owned(wanted)
        yield from self.of_runs()
        for side, size in _tiles_of_walks(self.spec, plan, wanted).items():
            yield from self.list_tiles(side, size)
        if "q" in own:
            yield self._dq(plan)
        if "k" in own:
            yield self._dk_dv(plan)

    def _dq(self, plan: WalksPlan) -> Launch:
        spec = self.spec
        blocks = {"q": plan.rows, "dout": plan.rows, "dq": plan.rows, "k": plan.walked, "v": plan.walked}
        rows, share = _rows(spec, spec.heads), spec.heads // spec.groups
        bytes_of_group = 2 * steps_of(spec, spec.keys) * (spec.head_size + spec.value_size)
        section = min(rows, share * max(1, plan.section // bytes_of_group))
        tiles = _tiles(spec, spec.queries, 2 * plan.rows)
        sizes = QuerySizes(spec.queries, spec.keys, spec.heads, share, tiles, rows, section, drawn=1)
        k_stages, v_stages = plan.stages
        options = DqOptions(
            window=self._window(),
            factors=factors_of(self.spec),
            scale=spec.factor,
            size=used_columns(spec.head_size),
            value_size=used_columns(spec.value_size),
            queries=plan.rows,
            keys=plan.walked,
            k_stages=k_stages,
            v_stages=v_stages,
            registers=plan.registers,
        )
        grid = min(rows * tiles, plan.programs)
        scalars: dict[str, Scalar] = {"sizes": sizes, "pitch": _numbers(spec)[1]}
        launch = self.launch(backward_dq, grid, scalars, {"OPTIONS": options}, self._described(blocks))
        return self._with(replace(launch, num_warps=4, allowed_spills=plan.spills), tile_list_ptr="tile_list_q")

    def _dk_dv(self, plan: WalksPlan) -> Launch:
        spec = self.spec
        blocks = {"q": plan.walked, "dout": plan.walked, **dict.fromkeys(("k", "v", "dk", "dv"), plan.rows)}
        descriptors = {**self._described(blocks), **self._described_numbers(plan.walked)}
        rows, share = _rows(spec, spec.groups), spec.heads // spec.groups
        bytes_of_group = 2 * share * steps_of(spec, spec.queries) * (spec.head_size + spec.value_size)
        section = min(rows, max(1, plan.section // bytes_of_group))
        keys = _keys_of_walk(spec, plan)
        tiles, tiles_q = _tiles(spec, spec.keys, keys), _tiles(spec, spec.queries, plan.walked)
        sizes = KeySizes(spec.queries, spec.keys, spec.heads, tiles, tiles_q, rows, section)
        q_stages, dout_stages = plan.stages_k
        options = DkDvOptions(
            window=self._window(),
            factors=factors_of(self.spec),
            scale=spec.factor,
            size=used_columns(spec.head_size),
            value_size=used_columns(spec.value_size),
            share=share,
            keys=keys,
            queries=plan.walked,
            q_stages=q_stages,
            dout_stages=dout_stages,
            listed=_listed(spec),
            registers=plan.registers,
        )
        grid = min(rows * tiles, plan.programs)
        kernel = backward_both if in_one_group(spec) else backward_apart
        launch = self.launch(kernel, grid, {"sizes": sizes}, {"OPTIONS": options}, descriptors)
        return self._with(replace(launch, num_warps=4, allowed_spills=plan.spills), tile_list_ptr="tile_list_k")

    def _described_numbers(self, queries: int) -> dict[str, Descriptor]:
        """The descriptors of base and delta, in blocks of so many queries."""
        spec = self.spec
        count, pitch = _numbers(spec)
        shape, layout = (_copies(spec) * count, _steps(spec, spec.queries)), gl.NVMMASharedLayout(0, 32, rank=2)
        return dict.fromkeys(("base", "delta"), Descriptor(shape, (pitch, 1), (1, queries), layout))

    def _window(self) -> Window:
        return Window(*self.sides())

    def _described(self, steps: Mapping[str, int], bits: int = 16) -> dict[str, Descriptor]:
        """The descriptors of arrays of elements of so many bits, in blocks of so many steps."""
        found = {name: self.described(name, size) for name, size in steps.items()}
        assert None not in found.values(), found
        return {
            name: replace(own, layout=swizzled(own.block[-1], bits, len(own.block)))
            for name, own in found.items()
            if own
        }
