"""The launches of the Hopper kernels where each channel of K has a decay of its own, and the calls they support."""

from __future__ import annotations

from typing import Any, ClassVar

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layouts, Program, read_in_place
from retrograd.core.spec import Pass, slot_count

from ...op import Spec
from ...rates import finish_rates
from ..launches import (
    BACK_PARKED,
    CHANNELS,
    FETCH_REGISTERS,
    FP32,
    HALF,
    PAIRS,
    STEPS,
    Launches,
    between_kept,
    in_place,
    slots_of,
)
from ..prepare import PAIR
from . import blocks
from .back import BackOptions, back
from .grads import PARTS, Options, grads
from .halves import WARPS
from .invert import invert
from .plan import Plan, planned
from .rows import rows
from .walk import walk

__all__ = ["backward", "forward", "planned", "suits"]

# `Launch.allowed_spills` of `rows` forward, in fp16; in bf16 it has 60. Sums and rows live through all levels.
ROW_PARKED = 130
PLANES, ROW_WARPS = blocks.PLANES.value, blocks.WIDE_WARPS.value
# `Launch.allowed_spills` of `grads`: above all, where key heads have several heads, dq and dk from one to the next.
GRAD_WARPS, GRAD_PARKED = WARPS.value, 100


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture, dtypes and sizes of a call; this does not depend on the layout."""
    if arch.name != "sm_90" or not arch.copies_tensors or spec.v.dtype not in ("bfloat16", "float16"):
        return False
    return spec.of_channels and spec.K == spec.V == CHANNELS and 0 not in spec.v.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> o, final_state and the saved states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*_rows(spec), Array("systems", (slots_of(spec), spec.heads, STEPS, STEPS), FP32))
    of = ChannelLaunches(spec, inputs + outputs + scratch, layouts, arch, plan)
    launches = (*of.normalize(), of.rows(forward=True), of.invert(), of.walk())
    return Program(inputs, outputs, scratch, launches)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results, the arguments and the saved states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*_rows(spec), *_backward_scratch(spec, outputs))
    of = ChannelLaunches(spec, inputs + outputs + scratch, layouts, arch, plan)
    launches = (
        *of.normalize(),
        of.rows(forward=False),
        of.back(),
        of.again(),
        of.grads(),
        of.finish(),
        *of.through_norm(),
    )
    return Program(inputs, outputs, scratch, launches)


def _backward_scratch(spec: Spec, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The other scratch arrays of the backward pass, with the unwanted gradients, as for one decay a head."""
    slots, heads, dtype = slots_of(spec), spec.heads, spec.v.dtype
    wanted = {array.name for array in outputs}
    alike = spec.params(("dq", "dk", "dv", "dg", "dbeta", "dinitial_state"))
    return (
        Array("sums", (slots, heads, STEPS, CHANNELS), FP32),
        Array("written", spec.v.shape, dtype),
        between_kept(spec),
        Array("leaving", (slots, heads, CHANNELS, CHANNELS), dtype),
        Array("parts", (slots, heads, PARTS.value, STEPS), FP32),
        *(Array(f"d{name}_unit", spec.q.shape, FP32) for name in "qk" if spec.normalize_qk),
        *(Array(name, param.shape, param.dtype) for name, param in alike.items() if name not in wanted),
    )


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
        "back": {"planes": (PLANES * STEPS,), "inverse": PAIRS, "scores": PAIRS, "leaving": (HALF, CHANNELS)},
        "grads": {
            "sums": (STEPS // 2, CHANNELS),
            "planes": (PLANES * STEPS,),
            **dict.fromkeys(("kept", "between", "leaving"), (CHANNELS, CHANNELS)),
        },
    }
    read: ClassVar = {"walk": frozenset({"inverse", "scores"}), "grads": frozenset({"dv"})}
    walks: ClassVar[Any] = walk
    of_results: ClassVar = ("q_grow", "scores")

    def rows(self, *, forward: bool) -> Launch:
        """Computes the rows with decays; forward also products of pairs of steps, backward sums of log decays."""
        arrays: dict[str, str | None] = {**self._queries, "g": "g", "beta": "beta"}
        arrays |= {f"{name}_ptr": name if forward else None for name in ("systems", "scores")}
        arrays["sums_ptr"] = None if forward else "sums"
        return self._launch(
            rows,
            slots_of(self.spec) * self.spec.heads,
            "cu_seqlens q_grow k_grow k_rest planes",
            arrays,
            num_warps=ROW_WARPS,
            max_registers=self.plan.row_registers,
            allowed_spills=ROW_PARKED if forward else 0,
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

    def back(self) -> Launch:
        """Computes the gradients of the states that leave blocks, and that of v."""
        spec, plan = self.spec, self.plan
        arrays = {
            **{f"{name}_ptr": name for name in ("q_grow", "k_grow", "k_rest")},
            **{name: name for name in ("planes", "inverse", "scores", "leaving")},
            "dout": "do",
            "start_ptr": "dfinal_state",
            "last_ptr": "dinitial_state",
        }
        return self._launch(
            back,
            spec.sequences * spec.heads * (CHANNELS // HALF),
            "cu_seqlens dv",
            arrays,
            allowed_spills=BACK_PARKED,
            OPTIONS=BackOptions(plan.back_stages, plan.back_stages, plan.back_stages - 1),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )

    def grads(self) -> Launch:
        """Computes the gradients of q, k and g, and that of beta in parts."""
        spec, plan = self.spec, self.plan
        arrays = {
            **self._queries,
            "dout": "do",
            "kept": "states",
            **{name: name for name in ("sums", "planes", "between", "leaving")},
            **{f"d{name}_ptr": f"d{name}_unit" if spec.normalize_qk else f"d{name}" for name in "qk"},
        }
        return self._launch(
            grads,
            spec.batch * slot_count(spec, plan.span * STEPS) * spec.key_heads,
            "dv written cu_seqlens dg parts",
            arrays,
            num_warps=GRAD_WARPS,
            allowed_spills=GRAD_PARKED,
            OPTIONS=Options(GROUP=spec.heads // spec.key_heads, SPAN=plan.span, KEPT=spec.chunk // STEPS),
            FETCH_REGISTERS=FETCH_REGISTERS,
        )

    def finish(self) -> Launch:
        """Computes the gradient of beta."""
        grid = slots_of(self.spec) * -(-self.spec.heads // self.plan.heads)
        names = "parts cu_seqlens dbeta"
        return self._launch(finish_rates, grid, names, {}, C=STEPS, PARTS=PARTS.value, HEADS=self.plan.heads)

    @property
    def _walked(self) -> dict[str, str | None]:
        """The arrays that a walk reads, of every block."""
        return {name: name for name in ("q_grow", "k_grow", "k_rest", "v", "planes", "inverse", "scores")}
