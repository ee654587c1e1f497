"""Which kernels run, in which order, on which arrays: a program for each pass, the same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import triton.language as tl

from retrograd.core.arch import Arch
from retrograd.core.arrays import read_in_place, strides_of
from retrograd.core.build import divisor
from retrograd.core.chunks import places
from retrograd.core.kernels.reduce import sum_blocks_launch, sum_rows_launch
from retrograd.core.op import Layouts, Param
from retrograd.core.program import Array, Launch, Program
from retrograd.core.rows import Layout, is_dense

from . import backward as backward_kernels
from . import forward as forward_kernels
from . import plan
from . import states as state_kernels
from .gluon import launches as gluon
from .passes import Launches
from .plan import Tile
from .spec import Spec

FP32 = "float32"
ROWS = ("x", "z", "dy", "B", "C")  # arrays of rows: (batch, time, heads or groups, columns)
TRITON = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}


def forward(spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch) -> Program:
    """The arguments -> y, final_state, states."""
    in_gluon = gluon.takes_forward(spec, arch)
    inputs, layouts = _inputs(names, spec, layouts, in_gluon)
    if in_gluon:
        scratch = gluon.forward_scratch(spec)
        launches = gluon.forward_launches(spec, inputs + outputs + scratch, layouts, arch)
        return Program(inputs, outputs, scratch, launches)
    tile = plan.tile(spec, arch)
    scratch = (*_prepared(spec, tile), _states("entering", spec, tile))
    of = _Launches(spec, inputs + outputs + scratch, layouts, arch, tile)
    states = of.carry("x", "B", start="initial_state", out="entering", kept="states", last="final_state")
    launches = (of.prepare(), states, of.outputs("x", "B", "C", "entering", out="y"))
    return Program(inputs, outputs, scratch, launches)


def backward(spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch) -> Program:
    """The gradients of the results, the arguments, states -> the gradients wanted.

    All others are computed as well: a kernel without them would be another binary, in which the compiler fuses other
    multiplications with additions, and a gradient's bits would depend on what else is asked for.
    """
    in_gluon = gluon.takes_backward(spec, arch)
    inputs, layouts = _inputs(names, spec, layouts, in_gluon)
    made = {array.name for array in outputs}
    alike = {name: spec[name] for name in ("x", "dt", "z", "initial_state")}
    unwanted = {f"d{name}": param for name, param in alike.items() if param and f"d{name}" not in made}
    scratch = (
        *(gluon.backward_scratch(spec) if in_gluon else _backward_scratch(spec, plan.tile(spec, arch))),
        *(Array(name, param.shape, param.dtype) for name, param in unwanted.items()),
    )
    arrays = inputs + outputs + scratch
    if in_gluon:
        launches = list(gluon.backward_launches(spec, arrays, layouts, arch))
    else:
        launches = _backward_launches(spec, arrays, layouts, arch)
    sizes = {array.name: array.shape for array in scratch}
    for name in ("B", "C"):
        if f"d{name}" in made:
            steps, blocks, _ = sizes[f"d{name}_partial"]
            each = blocks // spec.groups
            launches.append(sum_blocks_launch(f"d{name}_partial", f"d{name}", steps, spec.groups, each, spec.N, arch))
    for name in ("A", "dt_bias", "D"):
        if f"d{name}" in made:
            rows, columns = sizes[f"d{name}_partial"]
            if name == "D" and not _wide_skip(spec):
                # Channels come before heads, to be summed over them too.
                rows, columns = rows * columns // spec.heads, spec.heads
            launches.append(sum_rows_launch(f"d{name}_partial", f"d{name}", rows, columns, arch))
    return Program(inputs, outputs, scratch, tuple(launches))


def _backward_scratch(spec: Spec, tile: Tile) -> tuple[Array, ...]:
    """What the backward kernels in Triton need beside their results."""
    count, blocks = _places(spec, tile.steps), _head_blocks(spec)
    of_slices = (count, spec.heads * tile.slices(spec), tile.steps)
    of_states = (count, spec.heads * tile.slices(spec) * tile.state_blocks(spec), tile.steps)
    # Sums over blocks of steps.
    partials = {"A": (count, spec.heads), "dt_bias": (count, spec.heads), "D": (count, spec.heads * spec.P)}
    sizes = {
        **dict.fromkeys(("targets", "sources", "own"), of_slices),
        **dict.fromkeys(("before", "behind"), of_states),
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


def _backward_launches(spec: Spec, arrays: tuple[Array, ...], layouts: Layouts, arch: Arch) -> list[Launch]:
    """The backward kernels in Triton."""
    of = _Launches(spec, arrays, layouts, arch, plan.tile(spec, arch))
    dy = "dy_ungated" if spec.z else "dy"
    return [
        of.prepare(),
        of.carry("x", "B", start="states", out="entering", from_kept=True),
        *((of.outputs("x", "B", "C", "entering", dout="dy"),) if spec.z else ()),
        of.carry(dy, "C", start="dfinal_state", out="leaving", last="dinitial_state", back=True),
        of.outputs(dy, "C", "B", "leaving", out="dx", back=True),
        of.pairs(dy),
        of.through_states(dy, "C", "entering", "dC", "before", back=False),
        of.through_states("x", "B", "leaving", "dB", "behind", back=True),
        of.finish(),
    ]


@dataclass(frozen=True)
class _Launches(Launches):
    """The launches of a pass of Triton kernels."""

    tile: Tile

    def prepare(self) -> Launch:
        """Step sizes, and sums of log decays."""
        return self._of_steps(state_kernels.prepare, "dt A dt_bias cu_seqlens delta sums")

    def finish(self) -> Launch:
        """The gradients of step sizes, and of what they are made of."""
        arrays = "dt A dt_bias cu_seqlens delta targets sources own before behind both ddt dA_partial ddt_bias_partial"
        spec, tile = self.spec, self.tile
        sizes = {"P_BLOCKS": tile.slices(spec), "N_BLOCKS": tile.state_blocks(spec), "TILES": tile.tiles(spec)}
        return self._of_steps(backward_kernels.finish, arrays, **sizes)

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
        """The states that enter the blocks, or, `back`, the gradients of those that leave them."""
        spec, tile = self.spec, self.tile
        sequences = _places(spec, spec.chunk) if from_kept else spec.sequences
        return Launch(
            state_kernels.carry_states,
            grid=sequences * spec.heads * tile.tiles(spec),
            arrays=self.pointers(
                state_kernels.carry_states,
                drive_ptr=drive,
                vector_ptr=vector,
                delta_ptr="delta",
                sums_ptr="sums",
                start_ptr=start,
                cu_seqlens_ptr="cu_seqlens",
                entering_ptr="entering" if back else None,
                states_ptr=out,
                kept_ptr=kept,
                last_ptr=last,
                both_ptr="both" if back else None,
            ),
            scalars={
                **self.sizes,
                "heads_a_group": spec.heads // spec.groups,
                "drive_strides": self._strides(drive),
                "vector_strides": self._strides(vector),
            },
            constants={
                "P": spec.P,
                "N": spec.N,
                "Q": tile.steps,
                "KEEP": spec.chunk,
                "BLOCK_P": tile.channels,
                "BLOCK_N": tile.carried,
                "DRIVE_UNIT": self._unit(drive),
                "VECTOR_UNIT": self._unit(vector),
                **self._multiplied,
                "BACK": back,
                "FROM_KEPT": from_kept,
                "STAGES": tile.carry_stages,
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
        """The results of every block, or dx; with `dout`, the gradients of the gate."""
        gates = {"dz_ptr": "dz", "dy_ptr": "dy_ungated"} if dout else {"dz_ptr": None, "dy_ptr": None}
        arrays = self.pointers(
            forward_kernels.outputs,
            "D cu_seqlens delta sums",
            u_ptr=u,
            k_ptr=k,
            q_ptr=q,
            z_ptr=None if back else "z",
            dout_ptr=dout,
            states_ptr=states,
            out_ptr=out,
            **gates,
        )
        rows = {"u": u, "k": k, "q": q, "z": "z", "dout": "dy"}
        return self._of_blocks(forward_kernels.outputs, arrays, rows, BACK=back, WIDE_D=_wide_skip(self.spec))

    def pairs(self, dy: str) -> Launch:
        """Gradients by pairs of steps within a block."""
        names = "x B C cu_seqlens delta sums dB_within dC_within dD_partial targets sources own"
        arrays = self.pointers(backward_kernels.pairs, names, dy_ptr=dy)
        launch = self._of_blocks(backward_kernels.pairs, arrays, {"dy": dy, "x": "x", "B": "B", "C": "C"})
        return replace(launch, num_warps=self.tile.pair_warps)

    def through_states(self, u: str, q: str, states: str, dq: str, by_step: str, *, back: bool) -> Launch:
        """Gradients by pairs of steps that a state connects."""
        arrays = self.pointers(
            backward_kernels.through_states,
            "cu_seqlens delta sums",
            u_ptr=u,
            q_ptr=q,
            states_ptr=states,
            within_ptr=f"{dq}_within",
            partial_ptr=f"{dq}_partial",
            sums_by_step_ptr=by_step,
        )
        launch = self._of_blocks(backward_kernels.through_states, arrays, {"u": u, "q": q}, BACK=back)
        return replace(launch, grid=launch.grid * self.tile.state_blocks(self.spec))

    def _of_steps(self, kernel: Any, names: str, **constants: int) -> Launch:
        steps = self.tile.steps
        return self.of_steps(kernel, names, _places(self.spec, steps), plan.PREPARED_HEADS, Q=steps, **constants)

    def _of_blocks(self, kernel: Any, arrays: dict[str, str | None], rows: dict[str, str], **constants: Any) -> Launch:
        """A program for every block of steps and some heads of a group; `rows`: parameter -> array of rows."""
        spec, tile = self.spec, self.tile
        return Launch(
            kernel,
            grid=_places(spec, tile.steps) * _head_blocks(spec),
            arrays=arrays,
            scalars={
                **self.sizes,
                "G": spec.groups,
                **{f"{name}_strides": self._strides(array) for name, array in rows.items()},
                "dD_strides": (spec.P, 1) if _wide_skip(spec) else (1, spec.heads),
            },
            constants={
                "P": spec.P,
                "N": spec.N,
                "Q": tile.steps,
                "BLOCK_P": tile.channels,
                "BLOCK_N": tile.states,
                "HEADS": max(plan.heads(spec), 1),
                "STAGES": tile.stages,
                **{f"{name.upper()}_UNIT": self._unit(array) for name, array in rows.items()},
                **self._multiplied,
                **constants,
            },
            num_warps=tile.num_warps,
            num_stages=tile.stages,
            overlap=self.arch.overlaps_launches,
        )

    @property
    def _multiplied(self) -> dict[str, Any]:
        """How operands are multiplied."""
        return {
            "DTYPE": TRITON[self.spec.operand_dtype],
            "SPLIT": self.spec.operand_dtype == FP32 and self.arch.backend == "cuda",
            "OVERLAP": self.arch.overlaps_launches,
        }

    def _param(self, name: str) -> Param | None:
        """An array of rows."""
        return self.spec.x if name in ("dy", "dy_ungated") else self.spec[name]

    def _strides(self, name: str) -> tuple[int, ...]:
        """Of batch, time and head, in units."""
        param = self._param(name)
        if param is None:
            return (0, 0, 0)
        return tuple(s // self._unit(name) for s in strides_of(name, param.shape, self.layouts)[:-1])

    def _unit(self, name: str) -> int:
        param = self._param(name)
        return 1 if param is None else unit(param)


def unit(param: Param) -> int:
    """What the strides of rows are all multiples of where they lie densely."""
    return divisor(param.shape[-1])


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array where it lies: they are compiled for dense memory."""
    if name == "dt":
        return True
    if name not in ROWS:
        return layout.aligned and is_dense(param.shape, layout.strides)
    *rows, columns = layout.strides
    return layout.aligned and columns == 1 and not any(stride % unit(param) for stride in rows)


def _inputs(names: tuple[str, ...], spec: Spec, layouts: Layouts, in_gluon: bool) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that it reads where they lie; the others are copied."""
    params = {**spec.arrays(), "dy": spec.x, "dfinal_state": spec.state, "states": spec.kept}

    def reads(name: str, param: Param, layout: Layout) -> bool:
        return in_place(name, param, layout) and (not in_gluon or gluon.in_place(name, param, layout))

    return read_in_place({name: params[name] for name in names}, layouts, reads)


def _prepared(spec: Spec, tile: Tile) -> tuple[Array, Array]:
    shape = (_places(spec, tile.steps), spec.heads, tile.steps)
    return Array("delta", shape, FP32), Array("sums", shape, FP32)


def _states(name: str, spec: Spec, tile: Tile) -> Array:
    """A state for every block of steps."""
    return Array(name, (_places(spec, tile.steps), spec.heads, spec.P, spec.N), spec.operand_dtype)


def _places(spec: Spec, steps: int) -> int:
    """Places in all rows for blocks of so many steps."""
    return spec.batch * places(spec, steps)


def _head_blocks(spec: Spec) -> int:
    """Programs that share a block of steps."""
    return spec.groups * -(-(spec.heads // spec.groups) // max(plan.heads(spec), 1))


def _wide_skip(spec: Spec) -> bool:
    """Whether D is (H, P)."""
    return spec.D is not None and len(spec.D.shape) == 2
