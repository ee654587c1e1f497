"""The program of each pass: which kernels run, in which order, on which arrays. The same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import triton.language as tl

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import Array, Launch, Layouts, Program
from retrograd.core.spec import Pass, slot_count

from ..arrays import Summands
from ..finish import finish
from ..op import Spec
from ..passes import FP32, Launches, inputs_of, of_walk, sums, unwanted
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import states as state_kernels
from .arrays import Operands, Sizes
from .plan import Tile, planned

__all__ = ["backward", "forward", "planned", "suits"]

TRITON = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the dtypes, and x is not empty."""
    return spec.x.dtype in KERNEL_FLOATS and 0 not in spec.x.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The arguments -> y, final_state and the saved states."""
    inputs, layouts = inputs_of(spec, names, layouts)
    scratch = (*_prepared(spec, tile), _states("entering", spec, tile))
    of = _Launches(spec, inputs + outputs + scratch, layouts, arch, tile)
    states = of.carry("x", "B", start="initial_state", out="entering", kept="states", last="final_state")
    launches = (of.prepare(), states, of.outputs("x", "B", "C", "entering", out="y"))
    return Program(inputs, outputs, scratch, launches)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The gradients of the results, the arguments and the saved states -> the wanted gradients."""
    inputs, layouts = inputs_of(spec, names, layouts)
    scratch = (*_backward_scratch(spec, tile), *unwanted(spec, outputs))
    of = _Launches(spec, inputs + outputs + scratch, layouts, arch, tile)
    dy = "dy_ungated" if spec.z else "dy"
    launches = (
        of.prepare(),
        of.carry("x", "B", start="states", out="entering", from_kept=True),
        *((of.outputs("x", "B", "C", "entering", dout="dy"),) if spec.z else ()),
        of.carry(dy, "C", start="dfinal_state", out="leaving", last="dinitial_state", back=True),
        of.outputs(dy, "C", "B", "leaving", out="dx", back=True),
    )
    if of_walk(outputs):
        return Program(inputs, outputs, scratch, launches)
    launches += (
        of.pairs(dy),
        of.through_states(dy, "C", "entering", "dC", "before", back=False),
        of.through_states("x", "B", "leaving", "dB", "after", back=True),
        of.finish(),
    )
    return Program(inputs, outputs, scratch, launches + sums(spec, outputs, scratch, arch))


def _backward_scratch(spec: Spec, tile: Tile) -> tuple[Array, ...]:
    """The scratch arrays of the backward pass, without those of unwanted gradients."""
    count, blocks = _places(spec, tile.steps), tile.head_blocks(spec)
    of_slices = (count, spec.heads * tile.slices(spec), tile.steps)
    of_states = (count, spec.heads * tile.slices(spec) * tile.state_blocks(spec), tile.steps)
    # One sum per block of steps.
    partials = {"A": (count, spec.heads), "dt_bias": (count, spec.heads), "D": (count, spec.heads * spec.P)}
    sizes = {
        **dict.fromkeys(("targets", "sources", "own"), of_slices),
        **dict.fromkeys(("before", "after"), of_states),
        "both": (count, spec.heads * tile.tiles(spec)),
        **dict.fromkeys(
            ("dB_within", "dC_within", "dB_partial", "dC_partial"), (spec.batch * spec.time, blocks, spec.N)
        ),
        **{f"d{name}_partial": shape for name, shape in partials.items() if spec[name]},
    }
    return (
        *_prepared(spec, tile),
        _states("entering", spec, tile),
        _states("leaving", spec, tile),
        *(Array(name, shape, FP32) for name, shape in sizes.items()),
        *((Array("dy_ungated", spec.x.shape, spec.operand_dtype),) if spec.z else ()),
    )


@dataclass(frozen=True)
class _Launches(Launches):
    """Builds the launches of a pass of the Triton kernels."""

    tile: Tile

    def prepare(self) -> Launch:
        """Computes delta, and the sums of log decays."""
        names, steps = "A dt_bias cu_seqlens delta sums", self.tile.steps
        blocks, heads = _places(self.spec, steps), self.tile.prepared_heads
        return self.of_steps(state_kernels.prepare, names, blocks, heads, Q=steps, BLOCK_H=heads)

    def finish(self) -> Launch:
        """Computes the gradient of dt, and partial sums of those of A and dt_bias."""
        spec, tile = self.spec, self.tile
        summands = Summands(
            tile.steps,
            tile.slices(spec),
            tile.state_blocks(spec),
            tile.tiles(spec),
            tile.prepared_heads,
            spec.dt_softplus,
        )
        names = "A dt_bias cu_seqlens delta targets sources own before after both ddt dA_partial ddt_bias_partial"
        return self.of_steps(finish, names, _places(spec, tile.steps), tile.prepared_heads, SUMMANDS=summands)

    def carry(
        self,
        drive: str,
        vector: str,
        *,
        start: str,
        out: str,
        kept: str | None = None,
        last: str | None = None,
        back: bool = False,
        from_kept: bool = False,
    ) -> Launch:
        """Computes the states that enter the blocks or, with `back`, the gradients of those that leave them."""
        spec, tile = self.spec, self.tile
        sequences = _places(spec, spec.chunk) if from_kept else spec.sequences
        arrays = self.pointers(
            state_kernels.carry_states,
            "delta sums cu_seqlens",
            drive=drive,
            vector=vector,
            start_ptr=start,
            entering_ptr="entering" if back else None,
            states_ptr=out,
            kept_ptr=kept,
            last_ptr=last,
            both_ptr="both" if back else None,
        )
        return Launch(
            state_kernels.carry_states,
            grid=sequences * spec.heads * tile.tiles(spec),
            arrays=arrays,
            strided=self.strided(arrays),
            scalars={"lengths": self.lengths, "H": spec.heads, "heads_a_group": spec.heads // spec.groups},
            constants={
                "SIZES": self._sizes._replace(BLOCK_N=tile.carried, HEADS=1, STAGES=tile.carry_stages),
                "OPERANDS": self._operands,
                "KEEP": spec.chunk,
                "BACK": back,
                "FROM_KEPT": from_kept,
                "OVERLAP": self.arch.overlaps_launches,
            },
            num_warps=4,
            num_stages=tile.carry_stages,
            overlap=self.arch.overlaps_launches,
        )

    def outputs(
        self,
        u: str,
        k: str,
        q: str,
        states: str,
        *,
        out: str | None = None,
        dout: str | None = None,
        back: bool = False,
    ) -> Launch:
        """Computes y or, with `back`, dx; with `dout`, dz and the gradient of y before the gate instead."""
        gates = {"dz_ptr": "dz", "dy_ptr": "dy_ungated"} if dout else {"dz_ptr": None, "dy_ptr": None}
        arrays = self.pointers(
            forward_kernels.outputs,
            "D cu_seqlens delta sums",
            u=u,
            k=k,
            q=q,
            z=None if back else "z",
            dout=dout,
            states_ptr=states,
            out_ptr=out,
            **gates,
        )
        launch = self._of_blocks(forward_kernels.outputs, arrays, BACK=back, WIDE_D=self.spec.wide_skip)
        # One number is spilled, and read again, in float32.
        return replace(launch, allowed_spills=2 if self.spec.operand_dtype == FP32 else 0)

    def pairs(self, dy: str) -> Launch:
        """Computes the contributions of pairs of steps within a block to gradients."""
        names = "cu_seqlens delta sums dB_within dC_within targets sources own"
        arrays = self.pointers(backward_kernels.pairs, names, dy=dy, x="x", B="B", C="C", dD_partial="dD_partial")
        return replace(self._of_blocks(backward_kernels.pairs, arrays), num_warps=self.tile.pair_warps)

    def through_states(self, u: str, q: str, states: str, dq: str, by_step: str, *, back: bool) -> Launch:
        """Computes the contributions of pairs of steps in different blocks, through the states, to gradients."""
        arrays = self.pointers(
            backward_kernels.through_states,
            "cu_seqlens delta sums",
            u=u,
            q=q,
            states_ptr=states,
            within_ptr=f"{dq}_within",
            partial_ptr=f"{dq}_partial",
            sums_by_step_ptr=by_step,
        )
        launch = self._of_blocks(backward_kernels.through_states, arrays, BACK=back)
        return replace(launch, grid=launch.grid * self.tile.state_blocks(self.spec))

    def _of_blocks(self, kernel: Any, arrays: dict[str, str | None], **constants: Any) -> Launch:
        """A launch with a program for each block of steps and some heads of a group."""
        spec, tile = self.spec, self.tile
        return Launch(
            kernel,
            grid=_places(spec, tile.steps) * tile.head_blocks(spec),
            arrays=arrays,
            strided=self.strided(arrays),
            scalars={"lengths": self.lengths, "groups": self.groups},
            constants={
                "SIZES": self._sizes,
                "OPERANDS": self._operands,
                "OVERLAP": self.arch.overlaps_launches,
                **constants,
            },
            num_warps=tile.num_warps,
            num_stages=tile.stages,
            overlap=self.arch.overlaps_launches,
        )

    @property
    def _sizes(self) -> Sizes:
        spec, tile = self.spec, self.tile
        return Sizes(
            P=spec.P,
            N=spec.N,
            Q=tile.steps,
            BLOCK_P=tile.channels,
            BLOCK_N=tile.states,
            P_UNIT=self.unit(spec.x),
            N_UNIT=self.unit(spec.B),
            HEADS=tile.heads_of(spec),
            STAGES=tile.stages,
        )

    @property
    def _operands(self) -> Operands:
        dtype = self.spec.operand_dtype
        return Operands(TRITON[dtype], dtype == FP32 and self.arch.backend == "cuda")


def _prepared(spec: Spec, tile: Tile) -> tuple[Array, Array]:
    shape = (_places(spec, tile.steps), spec.heads, tile.steps)
    return Array("delta", shape, FP32), Array("sums", shape, FP32)


def _states(name: str, spec: Spec, tile: Tile) -> Array:
    """A scratch array with a state for every block of steps."""
    return Array(name, (_places(spec, tile.steps), spec.heads, spec.P, spec.N), spec.operand_dtype)


def _places(spec: Spec, steps: int) -> int:
    """The number of slots in all rows, for blocks of `steps` steps."""
    return spec.batch * slot_count(spec, steps)
