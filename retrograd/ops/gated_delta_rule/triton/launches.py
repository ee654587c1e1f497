"""The program of each pass: which kernels run, in which order, on which arrays. The same for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import triton.language as tl

from retrograd.core.arch import Arch
from retrograd.core.build import divisor
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.kernels.sequences import Heads
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, pointers_to, read_in_place, strides_of
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param, Pass, slot_count

from .. import norm as norm_kernels
from ..arrays import Call, Rows
from ..op import SMALLEST, Spec
from . import gradients as gradient_kernels
from . import states as state_kernels
from .arrays import Operands, Sizes, Summands
from .finish import finish
from .outputs import outputs as outputs_kernel
from .plan import MANY, Tile, planned
from .prepare import prepare

__all__ = ["backward", "forward", "planned", "suits"]

FP32 = "float32"
TRITON = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}
SPILLS, SPILLS_OF_WIDE = 10, 145  # of a program that carries states
# Of other kernels, by architecture. The assembler of sm_100 keeps to 64 and 80 registers there.
OTHER_SPILLS = {("through_states", "sm_80"): 12, ("outputs", "sm_100"): 2, ("finish", "sm_100"): 11}
ROWS = ("q", "k", "v", "do", "g")  # arrays of rows: (batch, time, heads or key heads, columns)
BY_STEP = ("g", "beta")
MAKE_PAIRS = ("prepare", "prepare_channels")  # kernels that write the inverse and the scores
PARAMS = {
    "q_unit": "q",
    "k_unit": "k",
    "q_grow": "g",
    "k_grow": "g",
    "dv_rows": "v",
}  # scratch arrays of the shape of an argument


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the dtypes, heads have one decay each, and v is not empty."""
    return spec.v.dtype in KERNEL_FLOATS and not spec.of_channels and 0 not in spec.v.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The arguments -> o, final_state and the saved states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*prepared(spec, tile), *walked(spec, tile))
    of = Launches(spec, inputs + outputs + scratch, layouts, arch, tile)
    launches = (
        *of.normalize(),
        of.prepare(),
        of.forward_states(start="initial_state", last="final_state"),
        of.outputs(),
    )
    return Program(inputs, outputs, scratch, launches)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The gradients of the results, the arguments and the saved states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*prepared(spec, tile), *walked(spec, tile), *_backward_scratch(spec, tile, outputs))
    of = Launches(spec, inputs + outputs + scratch, layouts, arch, tile)
    launches = (
        *of.normalize(),
        of.sums() if spec.keeps_pairs else of.prepare(),
        of.forward_states(start="states", from_kept=True),
        of.backward_states(),
        of.pairs(of_keys=False),
        of.pairs(of_keys=True),
        of.through_states(),
        of.finish(),
        *of.through_norm(),
    )
    return Program(inputs, outputs, scratch, launches)


def prepared(spec: Spec, tile: Tile) -> tuple[Array, ...]:
    """The scratch arrays of what is known before the states."""
    dtype, heads = spec.v.dtype, (places(spec, tile.steps), spec.heads)
    units = (Array(f"{name}_unit", spec.q.shape, dtype) for name in "qk" if spec.normalize_qk)
    return (
        *units,
        Array("vectors", (*heads, 2, tile.steps), FP32),
        *(
            Array(name, (*heads, tile.steps, tile.steps), dtype)
            for name in ("inverse", "scores")
            if not spec.keeps_pairs
        ),
    )


def walked(spec: Spec, tile: Tile) -> tuple[Array, ...]:
    """The scratch arrays of the states that enter blocks, and of what is written."""
    return states_of("entering", spec, tile), Array("written", spec.v.shape, spec.v.dtype)


def _backward_scratch(spec: Spec, tile: Tile, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The other scratch arrays of the backward pass, with the unwanted gradients.

    These are always computed: a kernel without them would be another binary, in which the compiler fuses other
    multiplications with additions, and a gradient's bits would depend on which other gradients are wanted.
    """
    slots, heads, steps = places(spec, tile.steps), spec.heads, tile.steps
    parts = heads * tile.value_blocks(spec) * tile.key_blocks(spec)
    sizes = {
        **dict.fromkeys(("targets_q", "targets_k", "sources_q", "sources_k", "own"), (slots, heads, steps)),
        **dict.fromkeys(("before", "after"), (slots, parts, steps)),
        "both": (slots, parts),
        **{f"d{name}_unit": spec.q.shape for name in "qk" if spec.normalize_qk},
    }
    wanted = {array.name for array in outputs}
    alike = spec.params(("dq", "dk", "dv", "dg", "dbeta", "dinitial_state"))
    return (
        states_of("leaving", spec, tile),
        Array("dv_rows", spec.v.shape, spec.v.dtype),
        *(Array(name, (slots, spec.key_heads, steps, steps), spec.v.dtype) for name in ("to_q", "to_k")),
        *(Array(name, shape, FP32) for name, shape in sizes.items()),
        *(Array(name, param.shape, param.dtype) for name, param in alike.items() if name not in wanted),
    )


@dataclass(frozen=True)
class Launches:
    """Builds the launches of a pass.

    Attributes:
        spec: the call.
        arrays: the arrays of the pass.
        layouts: the layouts of the arrays that are read in place.
        arch: the architecture.
        tile: the tile sizes.
    """

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch
    tile: Tile

    def normalize(self) -> Iterable[Launch]:
        """Divide rows of q and k by their norm, where the call says so."""
        if self.spec.normalize_qk:
            for name in "qk":
                yield self._of_rows(norm_kernels.normalize, x=name, unit_ptr=f"{name}_unit")

    def through_norm(self) -> Iterable[Launch]:
        """Computes the gradients of q and k from those of the rows of norm 1."""
        if self.spec.normalize_qk:
            for name in "qk":
                others = {"dunit_ptr": f"d{name}_unit", "dx_ptr": f"d{name}"}
                yield self._of_rows(norm_kernels.through_norm, x=name, **others)

    def prepare(self) -> Launch:
        """Computes the sums of log decays, the inverses and the scores of queries."""
        return self._prepare(pairs=True)

    def sums(self) -> Launch:
        """Computes the sums of log decays alone, where the others are saved."""
        return self._prepare(pairs=False)

    def _prepare(self, *, pairs: bool) -> Launch:
        names = "cu_seqlens vectors"
        grid = places(self.spec, self.tile.steps) * self.spec.heads
        keys: dict[str, str | None] = {"q": self._keys("q"), "k": self._keys("k"), "g": "g", "beta": "beta"}
        keys |= {f"{name}_ptr": name if pairs else None for name in ("inverse", "scores")}
        return self._launch(prepare, grid, names, keys, num_warps=self.tile.prepare_warps)

    def forward_states(self, *, start: str, last: str | None = None, from_kept: bool = False) -> Launch:
        """Computes the states that enter the blocks, and what is written."""
        spec = self.spec
        rows = {"k": self._grown("k"), "v": "v", "start_ptr": start, "last_ptr": last}
        return self._carried(
            state_kernels.forward_states,
            places(spec, spec.chunk) if from_kept else spec.sequences,
            "k_rest vectors sums inverse cu_seqlens entering written",
            rows,
            KEEP=spec.chunk,
            FROM_KEPT=from_kept,
        )

    def backward_states(self) -> Launch:
        """Computes the gradients of the states that leave the blocks, and that of v."""
        names = "k_rest vectors sums inverse scores cu_seqlens leaving"
        keys = {"q": self._grown("q"), "k": self._grown("k"), "dout": "do"}
        rows = {**keys, "start_ptr": "dfinal_state", "dv_ptr": "dv_rows", "last_ptr": "dinitial_state"}
        return self._carried(state_kernels.backward_states, self.spec.sequences, names, rows)

    def outputs(self) -> Launch:
        """Computes the results from the states."""
        spec, tile = self.spec, self.tile
        grid = places(spec, tile.steps) * spec.heads * tile.value_blocks(spec)
        names = "written entering scores cu_seqlens o"
        vectors = None if spec.of_channels else "vectors"
        rows = {"q": self._grown("q"), "kept_ptr": "states", "vectors_ptr": vectors}
        return self._launch(
            outputs_kernel, grid, names, rows, num_warps=tile.num_warps, KEEP=spec.chunk, call=self._call_of_heads
        )

    def pairs(self, *, of_keys: bool) -> Launch:
        """Computes the contributions of pairs of steps within a block to gradients."""
        grid = places(self.spec, self.tile.steps) * self.spec.key_heads
        name = "k" if of_keys else "q"
        arrays = {
            "targets": self._keys(name),
            "sources": self._keys("k"),
            "gradient": "dv_rows" if of_keys else "do",
            "factors_ptr": f"to_{name}",
            "by_target_ptr": f"targets_{name}",
            "by_source_ptr": f"sources_{name}",
            "own_ptr": None if of_keys else "own",
            "dv_ptr": "dv" if of_keys else None,
        }
        warps = self.tile.pair_warps
        names = "vectors written cu_seqlens"
        return self._launch(gradient_kernels.pairs, grid, names, arrays, num_warps=warps, OF_KEYS=of_keys)

    def through_states(self) -> Launch:
        """Computes the contributions of pairs of steps in different blocks, through the states, to gradients."""
        spec, tile = self.spec, self.tile
        grid = places(spec, tile.steps) * spec.key_heads * tile.key_blocks(spec)
        names = "vectors written dv_rows entering leaving to_q to_k cu_seqlens before after both"
        out = {f"d{name}_ptr": f"d{name}_unit" if spec.normalize_qk else f"d{name}" for name in "qk"}
        rows = {**self._queries, **out}
        return self._launch(gradient_kernels.through_states, grid, names, rows, num_warps=tile.state_warps)

    def finish(self) -> Launch:
        """Computes the gradients of g and beta."""
        spec, tile = self.spec, self.tile
        return Launch(
            finish,
            grid=places(spec, tile.steps) * -(-spec.heads // tile.heads),
            arrays=self._pointers(
                finish, "vectors targets_q targets_k sources_q sources_k own before after both cu_seqlens dg dbeta"
            ),
            scalars={"call": self._call},
            constants={
                "SUMMANDS": Summands(tile.steps, tile.value_blocks(spec), tile.key_blocks(spec), tile.heads),
                "OVERLAP": self.arch.overlaps_launches,
            },
            num_warps=4,
            allowed_spills=OTHER_SPILLS.get((finish.__name__, self.arch.name), 0),
            overlap=self.arch.overlaps_launches,
        )

    def _of_rows(self, kernel: Any, **arrays: str) -> Launch:
        """A launch over the rows of q or k."""
        spec, tile = self.spec, self.tile
        pointers = self._pointers(kernel, "cu_seqlens", **arrays)
        rows = spec.batch * spec.time * spec.key_heads
        return Launch(
            kernel,
            grid=-(-rows // tile.rows),
            arrays=pointers,
            strided=self._strided(pointers),
            scalars={"call": Rows(rows, spec.time, spec.key_heads, spec.sequences)},
            constants={
                "K": spec.K,
                "SMALLEST": SMALLEST,
                "ROWS": tile.rows,
                "BLOCK_K": tile.width,
                "UNIT": unit(spec.q),
                "OVERLAP": self.arch.overlaps_launches,
            },
            num_warps=4,
            overlap=self.arch.overlaps_launches,
        )

    def _carried(
        self, kernel: Any, sequences: int, names: str, rows: Mapping[str, str | None], **constants: Any
    ) -> Launch:
        """A launch with a program for each sequence, or part of one, each head and some channels of its values."""
        spec, tile = self.spec, self.tile
        sizes = self._sizes._replace(BLOCK_K=tile.width, BLOCK_V=tile.carried, STAGES=tile.carry_stages)
        launch = self._launch(
            kernel,
            sequences * spec.heads * -(-spec.V // tile.carried),
            names,
            rows,
            num_warps=tile.carry_warps,
            SIZES=sizes,
            call=self._call_of_heads,
            **constants,
        )
        # In fp32 both terms of a state that is an operand do not fit into the registers beside the state.
        wide = spec.v.dtype == FP32 and spec.K > MANY
        return replace(launch, allowed_spills=SPILLS_OF_WIDE if wide else SPILLS)

    def _launch(
        self, kernel: Any, grid: int, names: str, rows: Mapping[str, str | None], *, num_warps: int, **constants: Any
    ) -> Launch:
        """A launch on arrays named as parameters, and on those of `rows`, parameter -> array."""
        pointers = self._pointers(kernel, names, **rows)
        sizes = constants.pop("SIZES", self._sizes)
        call = constants.pop("call", self._call)
        return Launch(
            kernel,
            grid=grid,
            arrays=pointers,
            strided=self._strided(pointers),
            scalars={"call": call},
            constants={
                "SIZES": sizes,
                "OPERANDS": self._operands,
                "OVERLAP": self.arch.overlaps_launches,
                **constants,
            },
            num_warps=num_warps,
            num_stages=sizes.STAGES,
            allowed_spills=OTHER_SPILLS.get((kernel.__name__, self.arch.name), 0),
            reads=frozenset() if kernel.__name__ in MAKE_PAIRS else frozenset({"inverse", "scores"}),
            overlap=self.arch.overlaps_launches,
        )

    def _pointers(self, kernel: Any, names: str, **others: str | None) -> dict[str, str | None]:
        """Parameter -> array, in the kernel's order; None where it is absent."""
        pointers = pointers_to(self.arrays, names, **others)
        return {name: pointers[name] for name in kernel.arg_names if name in pointers}

    def _strided(self, pointers: Mapping[str, str | None]) -> dict[str, Heads]:
        """The strides of those arrays that are named tuples."""
        return {name: self._heads(array) for name, array in pointers.items() if not name.endswith("_ptr")}

    def _heads(self, name: str | None) -> Heads:
        """An array's strides of batch, time and head, in units; zeros for an absent one."""
        param = None if name is None else self.spec[PARAMS.get(name, name)]
        if name is None or param is None:
            return Heads(None, 0, 0, 0)
        each = unit(param) if len(param.shape) == 4 else 1
        batch, step, head = (stride // each for stride in strides_of(name, param.shape, self.layouts)[:3])
        return Heads(None, batch, step, head)

    def _keys(self, name: str) -> str:
        """The array that kernels take as q or k."""
        return f"{name}_unit" if self.spec.normalize_qk else name

    def _grown(self, name: str) -> str:
        """The array that the kernels with states take as q or k."""
        return f"{name}_grow" if self.spec.of_channels else self._keys(name)

    @property
    def _queries(self) -> dict[str, str | None]:
        """The rows that every kernel of the backward pass reads."""
        return {"q": self._keys("q"), "k": self._keys("k"), "dout": "do"}

    @property
    def _call(self) -> Call:
        spec = self.spec
        return Call(spec.time, spec.sequences, spec.heads, spec.key_heads, float(spec.factor))

    @property
    def _call_of_heads(self) -> Call:
        """That of the kernels with states: where q and k have decays, each head has its own."""
        return self._call._replace(G=self.spec.heads) if self.spec.of_channels else self._call

    @property
    def _sizes(self) -> Sizes:
        spec, tile = self.spec, self.tile
        return Sizes(
            K=spec.K,
            V=spec.V,
            C=tile.steps,
            BLOCK_K=tile.keys,
            BLOCK_V=tile.values,
            K_UNIT=unit(spec.q),
            V_UNIT=unit(spec.v),
            STAGES=tile.stages,
        )

    @property
    def _operands(self) -> Operands:
        dtype, cuda = self.spec.v.dtype, self.arch.backend == "cuda"
        return Operands(TRITON[dtype], TF32=cuda, SPLIT=cuda and dtype == FP32)


def unit(param: Param) -> int:
    """A number that divides all strides of rows of a dense array: the unit in which kernels receive strides."""
    return divisor(param.shape[-1])


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether kernels read an array without a copy: they are compiled for dense memory."""
    if name in BY_STEP and len(param.shape) == 3:
        return True
    if name not in ROWS:
        return layout.aligned and is_dense(param.shape, layout.strides)
    *rows, columns = layout.strides
    return layout.aligned and columns == 1 and not any(stride % unit(param) for stride in rows)


def states_of(name: str, spec: Spec, tile: Tile) -> Array:
    """A scratch array with a state for every block of steps."""
    return Array(name, (places(spec, tile.steps), spec.heads, spec.V, spec.K), spec.v.dtype)


def places(spec: Spec, steps: int) -> int:
    """The number of slots in all rows, for blocks of `steps` steps."""
    return spec.batch * slot_count(spec, steps)
