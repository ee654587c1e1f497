"""The launches of the Hopper kernels where each channel of K has a decay of its own, and the calls they support."""

from __future__ import annotations

from typing import ClassVar

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layouts, Program, read_in_place
from retrograd.core.spec import Pass, slot_count

from ...op import Spec
from ..arrays import WalkOptions
from ..launches import AGAIN, CHANNELS, FETCH_REGISTERS, FP32, HALF, PAIRS, STEPS, Launches, in_place, slots_of
from ..prepare import PAIR
from . import blocks
from .invert import invert
from .plan import planned
from .rows import rows
from .walk import walk

__all__ = ["forward", "planned", "suits"]

ROW_PARKED = 2  # `Launch.allowed_spills` of `rows`: bounds of a packed sequence
PLANES, ROW_WARPS = blocks.PLANES.value, blocks.WIDE_WARPS.value


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture, dtypes and sizes of a call; this does not depend on the layout."""
    if which == "bwd" or arch.name != "sm_90" or not arch.copies_tensors or spec.v.dtype not in ("bfloat16", "float16"):
        return False
    return spec.of_channels and spec.K == spec.V == CHANNELS and 0 not in spec.v.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: object
) -> Program:
    """The arguments -> o, final_state and the saved states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*_rows(spec), Array("systems", (slots_of(spec), spec.heads, STEPS, STEPS), FP32))
    of = ChannelLaunches(spec, inputs + outputs + scratch, layouts, arch, plan)
    launches = (*of.normalize(), of.rows(forward=True), of.invert(), of.walk())
    return Program(inputs, outputs, scratch, launches)


def _rows(spec: Spec) -> tuple[Array, ...]:
    """The scratch arrays of rows of norm 1, of rows with decays, and of the decays."""
    dtype = spec.v.dtype
    return (
        *(Array(f"{name}_unit", spec.q.shape, dtype) for name in "qk" if spec.normalize_qk),
        *(Array(name, spec.g.shape, dtype) for name in ("q_grow", "k_grow", "k_rest")),
        Array("planes", (slots_of(spec), spec.heads, PLANES, STEPS), FP32),
    )


class ChannelLaunches(Launches):
    """Builds the launches of a pass: those that differ from one decay a head."""

    blocks: ClassVar = {
        "invert": {"inverse": PAIRS},
        "walk": {"planes": (STEPS,), "inverse": PAIRS, "scores": PAIRS},
    }
    read: ClassVar = {"walk": frozenset({"inverse", "scores"})}

    def rows(self, *, forward: bool) -> Launch:
        """Computes the rows with decays, and forward what pairs of steps have in common, backward sums of log decays."""
        arrays: dict[str, str | None] = {**self._queries, "g": "g", "beta": "beta"}
        arrays |= {f"{name}_ptr": name if forward else None for name in ("systems", "scores")}
        arrays["sums_ptr"] = None if forward else "sums"
        return self._launch(
            rows,
            slots_of(self.spec) * self.spec.heads,
            "cu_seqlens q_grow k_grow k_rest planes",
            arrays,
            num_warps=ROW_WARPS,
            max_registers=self.plan.row_registers if forward else self.plan.sum_registers,
            allowed_spills=ROW_PARKED,
            AHEAD=max(1, self.plan.rows_ahead // self.spec.heads),
        )

    def invert(self) -> Launch:
        """Computes the inverses."""
        return self._launch(
            invert,
            slots_of(self.spec) * -(-self.spec.heads // PAIR.value),
            "systems",
            {"inverse": "inverse"},
            max_registers=self.plan.invert_registers,
        )

    def walk(self) -> Launch:
        """Computes the results and the states."""
        spec = self.spec
        arrays = {
            **{name: name for name in ("q_grow", "k_grow", "k_rest", "v", "planes", "inverse", "scores")},
            "start_ptr": "initial_state",
            "out_ptr": "o",
            "last_ptr": "final_state",
        }
        return self._launch(
            walk,
            spec.sequences * spec.heads * (CHANNELS // HALF),
            "cu_seqlens states",
            arrays,
            OPTIONS=WalkOptions(self.plan.walk_stages, spec.chunk // STEPS, AGAIN=0),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )

    def again(self) -> Launch:
        """Computes what is written, and the states that are not kept."""
        spec = self.spec
        arrays = {
            **{name: name for name in ("k_grow", "k_rest", "v", "planes", "inverse")},
            "q_grow": None,
            "scores": None,
            "start_ptr": "states",
            "out_ptr": "written",
            "states_ptr": "between",
            "last_ptr": None,
        }
        return self._launch(
            walk,
            spec.batch * slot_count(spec, AGAIN * STEPS) * spec.heads * (CHANNELS // HALF),
            "cu_seqlens",
            arrays,
            max_registers=self.plan.again_registers,
            OPTIONS=WalkOptions(self.plan.again_stages, spec.chunk // STEPS, AGAIN),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )
