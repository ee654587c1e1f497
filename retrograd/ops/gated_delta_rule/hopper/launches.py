"""The launches of the Hopper kernels, and the calls that they support."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.kernels.sequences import Heads
from retrograd.core.program import (
    Array,
    Descriptor,
    Launch,
    Layout,
    Layouts,
    Program,
    pointers_to,
    read_in_place,
    strides_of,
)
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param, Pass, slot_count

from .. import norm as norm_kernels
from ..arrays import Call, Rows
from ..op import SMALLEST, Spec
from . import blocks
from . import grads as grad_kernels
from .arrays import GradOptions, GradRegisters, WalkOptions
from .back import back
from .finish import finish
from .grads import grads
from .plan import Plan, planned
from .prepare import PAIR as PREPARED_PAIR
from .prepare import prepare
from .vectors import vectors
from .walk import walk

__all__ = ["backward", "forward", "planned", "suits"]

FP32 = "float32"
STEPS, CHANNELS, HALF, PLANES, UNIT = (x.value for x in (blocks.C, blocks.K, blocks.HALF, blocks.PLANES, blocks.UNIT))
ROWS = ("q", "k", "v", "do", "g")  # arrays of rows: (batch, time, heads or key heads, columns)
BY_STEP = ("g", "beta")
PARAMS = {
    "q_unit": "q",
    "k_unit": "k",
    "q_grow": "g",
    "k_grow": "g",
    "k_rest": "g",
}  # scratch arrays of the shape of an argument
FARTHEST = 2**31 // STEPS  # limit of the stride of steps, so that offsets within a block fit in 32 bits
ELEMENTS = 2048  # of q or k in a program that normalizes them
FETCH_REGISTERS = 24
WARPS = 4
AGAIN = 16  # blocks of a program that computes again what is written: bits depend on it
# `Launch.allowed_spills`: of `back` what its last store needs, of the others invariants, read once a block.
PREPARE_PARKED, BACK_PARKED, GRAD_PARKED = 4, 20, 48
SUMS, BOTH = grad_kernels.SUMS.value, 2 * grad_kernels.FLAT_ROWS.value
PANEL = gl.NVMMASharedLayout(128, 16, rank=2)
WIDE_PANEL = gl.NVMMASharedLayout(128, 32, rank=2)
LINE = gl.NVMMASharedLayout(0, 32, rank=1)
READ = {"walk": frozenset({"inverse", "scores"}), "grads": frozenset({"dv"})}  # outputs that kernels read
# Kernel -> parameters that are descriptors, and their blocks: of arrays as lines of numbers, or as rows.
PAIRS, LINES = (STEPS, STEPS), {"planes": (PLANES * STEPS,)}
BLOCKS: dict[str, dict[str, tuple[int, ...]]] = {
    "prepare": {"inverse": PAIRS, "scores": PAIRS},
    "walk": {**LINES, "inverse": PAIRS, "scores": PAIRS},
    "back": {**LINES, "inverse": PAIRS, "scores": PAIRS, "leaving": (HALF, CHANNELS)},
    "grads": {"vectors": (2 * STEPS,), **dict.fromkeys(("kept", "between", "leaving"), (HALF, HALF))},
}


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture, dtypes and sizes of a call.

    This does not depend on the layout: other kernels would compute other bits for the same row.
    """
    if arch.name != "sm_90" or not arch.copies_tensors or spec.v.dtype not in ("bfloat16", "float16"):
        return False
    return not spec.of_channels and spec.K == spec.V == CHANNELS and 0 not in spec.v.shape


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array without a copy: as descriptors see it, from a head's first step on."""
    if name in BY_STEP and len(param.shape) == 3:
        return True
    if name not in ROWS:
        return layout.aligned and is_dense(param.shape, layout.strides)
    *rows, columns = layout.strides
    if not layout.aligned or columns != 1 or any(stride % UNIT for stride in rows):
        return False
    # `grads` sees the heads of a step of the gradient as one row.
    one_row = name != "do" or layout.strides[2] == CHANNELS
    return one_row and CHANNELS <= layout.strides[1] < FARTHEST


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> o, final_state and the saved states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = _prepared(spec)
    of = Launches(spec, inputs + outputs + scratch, layouts, arch, plan)
    launches = (*of.normalize(), of.vectors(), of.prepare(), of.walk())
    return Program(inputs, outputs, scratch, launches)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results, the arguments and the saved states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*_prepared(spec), *_backward_scratch(spec, outputs))
    of = Launches(spec, inputs + outputs + scratch, layouts, arch, plan)
    launches = (
        *of.normalize(),
        of.vectors(),
        of.back(),
        of.again(),
        of.grads(),
        of.finish(),
        *of.through_norm(),
    )
    return Program(inputs, outputs, scratch, launches)


def _prepared(spec: Spec) -> tuple[Array, ...]:
    """The scratch arrays of what is known before the states."""
    slots, heads, dtype = slots_of(spec), spec.heads, spec.v.dtype
    units = (Array(f"{name}_unit", spec.q.shape, dtype) for name in "qk" if spec.normalize_qk)
    return (
        *units,
        Array("vectors", (slots, heads, 2, STEPS), FP32),
        Array("planes", (slots, heads, PLANES, STEPS), FP32),
    )


def between_kept(spec: Spec) -> Array:
    """The states that are not kept and enter blocks: see `slot_entering`."""
    kept = spec.params(("states",))["states"]
    batch, chunks, *state = kept.shape
    return Array("between", (batch, chunks if spec.chunk == 2 * STEPS else spec.blocks, *state), kept.dtype)


def _backward_scratch(spec: Spec, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The other scratch arrays of the backward pass, with the unwanted gradients.

    These are always computed: a kernel without them would be another binary, in which the compiler fuses other
    multiplications with additions, and a gradient's bits would depend on which other gradients are wanted.
    """
    slots, heads, dtype = slots_of(spec), spec.heads, spec.v.dtype
    wanted = {array.name for array in outputs}
    alike = spec.params(("dq", "dk", "dv", "dg", "dbeta", "dinitial_state"))
    return (
        Array("written", spec.v.shape, dtype),
        between_kept(spec),
        Array("leaving", (slots, heads, CHANNELS, CHANNELS), dtype),
        Array("sums", (slots, heads, SUMS, STEPS), FP32),
        Array("both", (slots, heads, BOTH), FP32),
        *(Array(f"d{name}_unit", spec.q.shape, FP32) for name in "qk" if spec.normalize_qk),
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
        plan: the plan.
        blocks: kernel -> parameters that are descriptors, and their blocks, as `BLOCKS`.
        read: kernel -> outputs that it reads, as `READ`.
        walks: the kernel that walks over blocks.
        of_results: what it reads for the results alone.
    """

    blocks: ClassVar = BLOCKS
    read: ClassVar = READ
    walks: ClassVar[Any] = walk
    of_results: ClassVar = ("q", "scores")

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch
    plan: Any

    def normalize(self) -> Iterable[Launch]:
        """Divide rows of q and k by their norm, where the call says so."""
        if self.spec.normalize_qk:
            for name in "qk":
                yield self._of_norms(norm_kernels.normalize, x=name, unit_ptr=f"{name}_unit")

    def vectors(self) -> Launch:
        """Computes the vectors of every block."""
        grid = slots_of(self.spec) * -(-self.spec.heads // self.plan.heads)
        rows = {"g": "g", "beta": "beta"}
        names = "cu_seqlens vectors planes"
        return self._launch(vectors, grid, names, rows, C=STEPS, HEADS=self.plan.heads)

    def prepare(self) -> Launch:
        """Computes the inverses and the scores of queries."""
        spec = self.spec
        rows = {**self._queries, "inverse": "inverse", "scores": "scores"}
        return self._launch(
            prepare,
            slots_of(spec) * spec.key_heads * -(-spec.heads // (spec.key_heads * PREPARED_PAIR.value)),
            "vectors cu_seqlens",
            rows,
            max_registers=self.plan.prepare_registers,
            allowed_spills=PREPARE_PARKED,
            GROUP=spec.heads // spec.key_heads,
        )

    def walk(self) -> Launch:
        """Computes the results and the states."""
        spec = self.spec
        return self._launch(
            self.walks,
            spec.sequences * spec.heads * (CHANNELS // HALF),
            "cu_seqlens states",
            {**self._walked, "start_ptr": "initial_state", "out_ptr": "o", "last_ptr": "final_state"},
            OPTIONS=WalkOptions(self.plan.walk_stages, spec.chunk // STEPS, AGAIN=0),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )

    def again(self) -> Launch:
        """Computes what is written, and the states that are not kept."""
        spec = self.spec
        assert AGAIN * STEPS % spec.chunk == 0, "each program begins with a kept state"
        rows = {
            **self._walked,
            **dict.fromkeys(self.of_results),
            "start_ptr": "states",
            "out_ptr": "written",
            "states_ptr": "between",
            "last_ptr": None,
        }
        return self._launch(
            self.walks,
            spec.batch * slot_count(spec, AGAIN * STEPS) * spec.heads * (CHANNELS // HALF),
            "cu_seqlens",
            rows,
            max_registers=self.plan.again_registers,
            OPTIONS=WalkOptions(self.plan.again_stages, spec.chunk // STEPS, AGAIN),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )

    def back(self) -> Launch:
        """Computes the gradients of the states that leave blocks, and that of v."""
        spec = self.spec
        rows = {
            **self._queries,
            "dout": "do",
            **{name: name for name in ("planes", "inverse", "scores", "leaving")},
            "start_ptr": "dfinal_state",
            "last_ptr": "dinitial_state",
        }
        return self._launch(
            back,
            spec.sequences * spec.heads * (CHANNELS // HALF),
            "cu_seqlens dv",
            rows,
            allowed_spills=BACK_PARKED,
            OPTIONS=WalkOptions(self.plan.back_stages, spec.chunk // STEPS, AGAIN=0),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )

    def grads(self) -> Launch:
        """Computes the gradients of q and k, and sums for the others."""
        spec, plan = self.spec, self.plan
        rows = {
            **self._queries,
            "dout": "do",
            **{name: name for name in ("vectors", "between", "leaving")},
            "kept": "states",
            **{f"d{name}_ptr": f"d{name}_unit" if spec.normalize_qk else f"d{name}" for name in "qk"},
        }
        options = GradOptions(
            GROUP=spec.heads // spec.key_heads,
            SPAN=plan.span,
            KEPT=spec.chunk // STEPS,
            ROWS=plan.row_stages,
            STATES=plan.state_stages,
            QUERIES=plan.query_stages,
        )
        return self._launch(
            grads,
            spec.batch * slot_count(spec, plan.span * STEPS) * spec.key_heads,
            "dv written cu_seqlens sums both",
            rows,
            allowed_spills=GRAD_PARKED,
            OPTIONS=options,
            REGISTERS=GradRegisters(plan.grad_registers, FETCH_REGISTERS),
        )

    def finish(self) -> Launch:
        """Computes the gradients of g and beta."""
        grid = slots_of(self.spec) * -(-self.spec.heads // self.plan.heads)
        names = "vectors sums both cu_seqlens dg dbeta"
        return self._launch(finish, grid, names, {}, C=STEPS, BOTH=BOTH, HEADS=self.plan.heads)

    def through_norm(self) -> Iterable[Launch]:
        """Computes the gradients of q and k from those of the rows of norm 1."""
        if self.spec.normalize_qk:
            for name in "qk":
                others = {"dunit_ptr": f"d{name}_unit", "dx_ptr": f"d{name}"}
                yield self._of_norms(norm_kernels.through_norm, x=name, **others)

    @property
    def _queries(self) -> dict[str, str | None]:
        """The arrays that kernels take as q and k."""
        return {name: f"{name}_unit" if self.spec.normalize_qk else name for name in "qk"}

    @property
    def _walked(self) -> dict[str, str | None]:
        """The arrays that a walk reads, of every block."""
        return {**self._queries, **{name: name for name in ("v", "planes", "inverse", "scores")}}

    def _of_norms(self, kernel: Any, **others: str | None) -> Launch:
        """A launch on rows of q or k alone."""
        spec = self.spec
        rows = spec.batch * spec.time * spec.key_heads
        each = ELEMENTS // CHANNELS
        sizes = {"K": CHANNELS, "SMALLEST": SMALLEST, "ROWS": each, "BLOCK_K": CHANNELS, "UNIT": UNIT}
        call = Rows(rows, spec.time, spec.key_heads, spec.sequences)
        return self._launch(kernel, -(-rows // each), "cu_seqlens", others, call=call, **sizes)

    def _launch(
        self,
        kernel: Any,
        grid: int,
        names: str,
        others: Mapping[str, str | None],
        *,
        num_warps: int = WARPS,
        max_registers: int | None = None,
        allowed_spills: int = 0,
        call: Any = None,
        **constants: Any,
    ) -> Launch:
        """A launch on arrays named as parameters, and on those of `others`, parameter -> array."""
        found = pointers_to(self.arrays, names, **others)
        arrays = {name: found[name] for name in kernel.arg_names if name in found}
        described = self._described(kernel, arrays)
        own = {name: a for name, a in arrays.items() if not name.endswith("_ptr") and name not in described}
        return Launch(
            kernel,
            grid=grid,
            arrays=arrays,
            descriptors=described,
            strided={name: self._heads(array) for name, array in own.items()},
            scalars={"call": call or self._call},
            constants={**constants, "OVERLAP": self.arch.overlaps_launches},
            num_warps=num_warps,
            max_registers=max_registers,
            allowed_spills=allowed_spills,
            reads=self.read.get(kernel.__name__, frozenset()),
            overlap=self.arch.overlaps_launches,
        )

    def _described(self, kernel: Any, arrays: Mapping[str, str | None]) -> dict[str, Descriptor]:
        """The descriptors of arrays with a slot for every block, or for every kept state."""
        shapes = {array.name: array.shape for array in self.arrays}
        wide = {array.name for array in self.arrays if array.dtype == FP32}
        found = {}
        for name, block in self.blocks.get(kernel.__name__, {}).items():
            if (array := arrays.get(name)) is not None:
                layout = LINE if len(block) == 1 else WIDE_PANEL if array in wide else PANEL
                size = prod(shapes[array])
                shape = (size,) if len(block) == 1 else (size // shapes[array][-1], shapes[array][-1])
                found[name] = Descriptor(shape, (*shape[1:], 1), block, layout)
        return found

    def _heads(self, name: str | None) -> Heads:
        """An array's strides of batch, time and head, in units; zeros for an absent one."""
        param = None if name is None else self.spec[PARAMS.get(name, name)]
        if name is None or param is None:
            return Heads(None, 0, 0, 0)
        each = UNIT if len(param.shape) == 4 else 1
        batch, step, head = (stride // each for stride in strides_of(name, param.shape, self.layouts)[:3])
        return Heads(None, batch, step, head)

    @property
    def _call(self) -> Call:
        spec = self.spec
        return Call(spec.time, spec.sequences, spec.heads, spec.key_heads, float(spec.factor))


def slots_of(spec: Spec) -> int:
    """The number of slots of blocks in all rows."""
    return spec.batch * slot_count(spec, STEPS)
