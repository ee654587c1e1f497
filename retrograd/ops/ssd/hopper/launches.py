"""The launches of the Hopper kernels, and the calls that they support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, Scalar
from retrograd.core.spec import Param, Pass, slot_count

from .. import passes
from ..arrays import Summands
from ..finish import finish
from ..op import Spec
from ..passes import FP32, Launches, inputs_of, of_walk, sums, unwanted
from . import blocks
from .ahead import ahead
from .arrays import AheadOptions, MiddleSizes, PairCall, PairOptions, Registers, WalkOptions
from .middle import middle
from .pairs import pairs
from .plan import (
    CHANNELS,
    MIDDLE_SLICES,
    MIDDLE_STATES,
    SLOT,
    STEPS,
    Plan,
    halves,
    head_blocks,
    heads,
    kept_places,
    planned,
    programs_of_middle,
    programs_of_pairs,
    slices,
    walked,
)
from .prepare import prepare
from .walk import walk

__all__ = ["backward", "forward", "planned", "suits"]

VECTORS = blocks.VECTORS.value
STATES = (64, 128, 256)  # N
PREPARED_HEADS = 16  # heads of a program of `prepare`
FINISHED_HEADS = 8  # heads of a program of `finish`
MIDDLE_STAGES = 2  # slices that a program of `middle` copies at once
FARTHEST = 2**31 // STEPS  # limit of the stride of steps, so that offsets within a block fit in 32 bits

# Registers per thread, on average, and of each kind of warp.
WALK_REGISTERS, AHEAD_REGISTERS, PAIR_REGISTERS = 128, 128, 168
REGISTERS_OF_WALK = Registers(CARRY=192, WEIGH=104, FETCH=24)
CONSUME_REGISTERS, FETCH_REGISTERS = 240, 24
# `Launch.allowed_spills`: spill instructions for loop invariants, or for a few numbers per slice.
WALK_PARKED, PAIR_PARKED = 36, 28
BACK_PARKED = 24  # more in the backward pass, with one of them in the loop
STORE_PARKED = 36  # more, around the store of a state in the loop, which is made once for each sequence
# Pipeline stages of copies, as many as fit in shared memory: by `halves`, and by the states of a program of `ahead`.
WALK_STAGES = {1: 3, 2: 2}
PAIR_STAGES = 2
AHEAD_STAGES = {32: 8, 64: 6, 128: 4}


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture, dtypes and sizes of a call; they do not compute dD for a D (H, P).

    This does not depend on the layout: other kernels would compute other bits for the same row.
    """
    if arch.name != "sm_90" or spec.operand_dtype not in ("bfloat16", "float16") or 0 in spec.x.shape:
        return False
    if spec.P % CHANNELS or spec.N not in STATES or (which == "bwd" and spec.wide_skip):
        return False
    return -(-spec.time // SLOT) * SLOT * spec.heads * VECTORS < 2**31  # coordinates in a sequence


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array without a copy: their descriptors treat the heads of a step as one row."""
    if not passes.in_place(name, param, layout):
        return False
    if name not in ("x", "dy", "B", "C"):
        return True
    heads, columns = param.shape[2:]
    row = columns if name in "BC" else heads * columns
    return row <= layout.strides[1] < FARTHEST and (name in "BC" or layout.strides[2] == columns)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> y, final_state and the saved states."""
    inputs, layouts = inputs_of(spec, names, layouts, in_place)
    scratch = (*_prepared(spec), _ahead(spec, plan))
    of = _Launches(spec, inputs + outputs + scratch, layouts, arch, plan)
    walk = of.walk("x", "B", "C", start="initial_state", out="y", states="states", last="final_state")
    return Program(inputs, outputs, scratch, (of.prepare(), *of.ahead("x", "B", start="initial_state"), walk))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results, the arguments and the saved states -> the wanted gradients."""
    inputs, layouts = inputs_of(spec, names, layouts, in_place)
    scratch = (*_backward_scratch(spec, plan), *unwanted(spec, outputs))
    of = _Launches(spec, inputs + outputs + scratch, layouts, arch, plan)
    back = of.walk("dy", "C", "B", start="dfinal_state", out="dx", states="leaving", last="dinitial_state", back=True)
    launches = (of.prepare(), *of.middle(), *of.ahead("dy", "C", start="dfinal_state", back=True), back)
    if of_walk(outputs):
        return Program(inputs, outputs, scratch, launches)
    launches += (
        of.pairs("dy", "x", "C", "B", states="states", partial="dC_partial", for_b=False),
        of.pairs("x", "dy", "B", "C", states="leaving", partial="dB_partial", for_b=True),
        of.finish(),
    )
    return Program(inputs, outputs, scratch, launches + sums(spec, outputs, scratch, arch))


def _prepared(spec: Spec) -> tuple[Array, Array]:
    """The results of `prepare`."""
    count = spec.batch * slot_count(spec, SLOT)
    vectors = Array("vectors", (count, SLOT // STEPS, spec.heads, VECTORS, STEPS), FP32)
    return vectors, Array("delta", (count, spec.heads, SLOT), FP32)


def _ahead(spec: Spec, plan: Plan) -> Array:
    """The states, or gradients of states, that enter the spans of cut walks after the first."""
    return Array("ahead", (plan.spans.cut, plan.spans.count - 1, walked(spec), CHANNELS, spec.N), FP32)


def _backward_scratch(spec: Spec, plan: Plan) -> tuple[Array, ...]:
    """The scratch arrays of the backward pass, without those of unwanted gradients."""
    count = spec.batch * slot_count(spec, SLOT)
    parts = spec.heads * slices(spec) * halves(spec)
    by_step = ("targets", "own", "dots", "sources", "after")
    partial = (spec.batch * spec.time, spec.groups * head_blocks(spec) * halves(spec), spec.N)
    saved = spec.params(("states",))["states"]
    return (
        *_prepared(spec),
        _ahead(spec, plan),
        *([Array("middle", saved.shape, saved.dtype)] if kept_places(spec) == 2 else []),
        Array("leaving", (count, spec.heads, spec.P, spec.N), spec.operand_dtype),
        Array("both", (count, parts, 4), FP32),
        *(Array(name, (count, parts, SLOT), FP32) for name in by_step),
        *(Array(f"d{name}_partial", partial, FP32) for name in ("B", "C")),
        *(Array(f"d{name}_partial", (count, spec.heads), FP32) for name in ("A", "dt_bias", "D") if spec[name]),
    )


@dataclass(frozen=True)
class _Launches(Launches):
    """Builds the launches of a pass of the Hopper kernels."""

    plan: Plan

    def prepare(self) -> Launch:
        """Computes delta, and the vectors of every block."""
        each = SLOT // STEPS
        names = "A dt_bias cu_seqlens vectors delta"
        constants = {"Q": STEPS, "BLOCKS": each, "BLOCK_H": PREPARED_HEADS}
        return self.of_steps(prepare, names, self._places * each, PREPARED_HEADS, **constants)

    def finish(self) -> Launch:
        """Computes the gradient of dt, and partial sums of those of A, dt_bias and D."""
        count = slices(self.spec) * halves(self.spec)
        summands = Summands(
            Q=SLOT, SLICES=count, PARTS=1, TILES=4 * count, HEADS=FINISHED_HEADS, DT_SOFTPLUS=self.spec.dt_softplus
        )
        names = "A dt_bias cu_seqlens delta targets sources own after both dots"
        out = "ddt dA_partial ddt_bias_partial dD_partial"
        return self.of_steps(finish, f"{names} {out}", self._places, FINISHED_HEADS, SUMMANDS=summands)

    def ahead(self, u: str, k: str, *, start: str, back: bool = False) -> tuple[Launch, ...]:
        """Computes what enters spans, if walks are cut."""
        spec, spans = self.spec, self.plan.spans
        if spans.count == 1:
            return ()
        columns = min(self.plan.columns, spec.N)
        launch = self._of_rows(
            ahead,
            spans.cut * walked(spec) * (spec.N // columns),
            self.pointers(ahead, "vectors cu_seqlens ahead", u=u, k=k, start_ptr=start),
            {"lengths": self.lengths, "groups": self.groups, "spans": spans.scalars},
            OPTIONS=AheadOptions(spec.P, spec.N, columns, AHEAD_STAGES[columns], back),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )
        return (replace(launch, max_registers=AHEAD_REGISTERS),)

    def middle(self) -> tuple[Launch, ...]:
        """Computes the states that enter the slots without a saved state, if there are such slots."""
        spec = self.spec
        if kept_places(spec) == 1:
            return ()
        of_group = spec.heads // spec.groups
        each = min(self.plan.sharing, of_group, MIDDLE_SLICES // slices(spec))
        launch = self._of_rows(
            middle,
            programs_of_middle(spec) * -(-of_group // each),
            self.pointers(middle, "vectors states cu_seqlens middle", x="x", B="B"),
            {"lengths": self.lengths, "groups": self.groups, "each": each},
            SIZES=MiddleSizes(spec.P, spec.N, STEPS, CHANNELS, MIDDLE_STATES, MIDDLE_STAGES),
        )
        return (launch,)

    def walk(
        self, u: str, k: str, q: str, *, start: str, out: str, states: str, last: str, back: bool = False
    ) -> Launch:
        """Computes y and the states or, with `back`, dx and the gradients of the states."""
        spec = self.spec
        arrays = self.pointers(
            walk,
            "vectors ahead middle cu_seqlens",
            u=u,
            k=k,
            q=q,
            D="D",
            start_ptr=start,
            entering_ptr="states" if back else None,
            out_ptr=out,
            states_ptr=states,
            both_ptr="both" if back else None,
            last_ptr=last,
        )
        launch = self._of_rows(
            walk,
            self.plan.spans.programs,
            arrays,
            {"lengths": self.lengths, "groups": self.groups, "spans": self.plan.spans.scalars},
            OPTIONS=WalkOptions(
                spec.P, spec.N, WALK_STAGES[halves(spec)], back, kept_places(spec), spec.state_at_border
            ),
            REGISTERS=REGISTERS_OF_WALK,
        )
        parked = WALK_PARKED + back * BACK_PARKED + spec.state_at_border * STORE_PARKED
        return replace(launch, max_registers=WALK_REGISTERS, allowed_spills=parked)

    def pairs(
        self, rows: str, columns: str, left: str, right: str, *, states: str, partial: str, for_b: bool
    ) -> Launch:
        """Computes partial sums of dC, or with `for_b` of dB, and of the gradients of log decays and delta."""
        spec = self.spec
        others = "sources after" if for_b else "middle targets own dots"
        of_group = head_blocks(spec)
        each = min(self.plan.together, of_group)
        arrays = self.pointers(
            pairs,
            f"vectors cu_seqlens {others}",
            rows=rows,
            columns=columns,
            left=left,
            right=right,
            states_ptr=states,
            partial_ptr=partial,
        )
        launch = self._of_rows(
            pairs,
            programs_of_pairs(spec) * -(-of_group // each),
            arrays,
            {"call": PairCall(spec.time, spec.sequences, spec.heads, each), "G": spec.groups},
            OPTIONS=PairOptions(spec.P, spec.N, heads(spec), PAIR_STAGES, for_b),
            CONSUME_REGISTERS=CONSUME_REGISTERS,
            FETCH_REGISTERS=FETCH_REGISTERS,
        )
        return replace(launch, max_registers=PAIR_REGISTERS, allowed_spills=PAIR_PARKED)

    def _of_rows(
        self, kernel: Any, grid: int, arrays: Mapping[str, str | None], scalars: Mapping[str, Scalar], **constants: Any
    ) -> Launch:
        """A launch of a kernel that reads rows."""
        return Launch(
            kernel,
            grid=grid,
            arrays=arrays,
            strided=self.strided(arrays),
            scalars=scalars,
            constants={**constants, "OVERLAP": self.arch.overlaps_launches},
            num_warps=4,
            overlap=self.arch.overlaps_launches,
        )

    def unit(self, param: Param) -> int:
        """The unit of the strides of an array of rows, in elements."""
        return int(blocks.UNIT.value)

    @property
    def _places(self) -> int:
        return self.spec.batch * slot_count(self.spec, SLOT)
