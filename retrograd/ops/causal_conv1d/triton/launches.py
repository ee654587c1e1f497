"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX.

The strides select the kernels: if time is contiguous, those that read vectors of time run. Their results have the same
bits as those of the others.
"""

from __future__ import annotations

from math import prod
from typing import Any

from triton import knobs

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.kernels.reduce import sum_rows_launch
from retrograd.core.program import Array, Launch, Layouts, Program, Strides, arrays_of, pointers_to, strides_of
from retrograd.core.spec import Pass

from ..op import Convolution, Spec
from . import backward as backward_kernels
from . import forward as forward_kernels
from .arrays import Activation, LaneTile, Lengths, Line, Rows, Sizes, VectorLengths, VectorTile, Weight
from .plan import Plan, Vectors, Walk, planned

__all__ = ["backward", "forward", "planned", "suits"]

WIDTHS = range(2, 9)  # that the kernels take

STATE_CHANNELS = 128  # per program of the kernels for states, which has one warp

PACKED_SPILLS = 28  # spill instructions of sums over time where packed sequences leave no register for them


def suits(spec: Convolution, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the width and the dtype."""
    return spec.width in WIDTHS and spec.x.dtype in KERNEL_FLOATS


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> y and, if returned, final_state."""
    inputs = arrays_of(layouts, **spec.params(names))
    reads = "x weight bias initial_state"
    constants = {**constants_of(spec, arch), "ACTIVATION": activation_of(spec, arch)}
    if _in_time(spec, layouts, "x"):
        vectors = plan.vectors
        main = Launch(
            forward_kernels.forward_time,
            grid=_grid(spec, vectors),
            **_arrays(inputs + outputs, layouts, reads, y_ptr="y"),
            scalars={"lengths": VectorLengths(spec.time, vectors.tiles(spec))},
            constants={
                **constants_of(spec, arch),
                "ACTIVATION": activation_of(spec, arch),
                "TILE": _vectors(spec, vectors),
            },
            num_warps=vectors.num_warps,
            overlap=arch.overlaps_launches,
        )
    else:
        walk = plan.walk
        main = Launch(
            forward_kernels.forward_channels,
            grid=_grid(spec, walk),
            **_arrays(inputs + outputs, layouts, f"{reads} cu_seqlens", y_ptr="y"),
            scalars={"lengths": Lengths(spec.time, spec.sequences, walk.steps(spec))},
            constants={**constants, "TILE": _lanes(walk)},
            num_warps=walk.num_warps,
            overlap=arch.overlaps_launches,
        )
    if not spec.return_final_state:
        return Program(inputs, outputs, (), (main,))
    states = Launch(
        forward_kernels.final_states,
        grid=_state_grid(spec),
        **_arrays(inputs + outputs, layouts, "x initial_state cu_seqlens", final_ptr="final_state"),
        scalars={"T": spec.time},
        constants={**constants_of(spec, arch), "BLOCK_D": STATE_CHANNELS},
        num_warps=1,
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (main, states))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results and the arguments -> the gradients in `outputs`."""
    inputs = arrays_of(layouts, **spec.params(names))
    gradients = {array.name: array for array in outputs}
    in_time = {name: name in names and _in_time(spec, layouts, name) for name in ("x", "dy")}
    tile = plan.vectors if any(in_time.values()) else plan.walk
    partials = spec.batch * tile.chunks(spec)
    scratch = tuple(
        Array(f"{name}_partial", (partials, *gradients[name].shape), "float32")
        for name in ("dweight", "dbias")
        if name in gradients and (partials != 1 or gradients[name].dtype != "float32")
    )
    writes = {f"{name}_ptr": name for name in ("dx", "dweight", "dbias")}
    writes |= {f"{array.name.removesuffix('_partial')}_ptr": array.name for array in scratch}
    arrays = inputs + outputs + scratch
    reads = "dy dfinal_state x weight bias initial_state"
    constants = {**constants_of(spec, arch), "ACTIVATION": activation_of(spec, arch)}
    launches = []
    if gradients.keys() & {"dx", "dweight", "dbias"}:
        if isinstance(tile, Vectors):
            own = {"TILE": _vectors(spec, tile), "X_IN_TIME": in_time["x"], "DY_IN_TIME": in_time["dy"]}
            launch = Launch(
                backward_kernels.backward_time,
                grid=_grid(spec, tile),
                **_arrays(arrays, layouts, reads, **writes),
                scalars={"lengths": VectorLengths(spec.time, tile.tiles(spec))},
                constants={**constants, **own},
                num_warps=tile.num_warps,
                overlap=arch.overlaps_launches,
            )
        else:
            launch = Launch(
                backward_kernels.backward_channels,
                grid=_grid(spec, tile),
                **_arrays(arrays, layouts, f"{reads} cu_seqlens", **writes),
                scalars={"lengths": Lengths(spec.time, spec.sequences, tile.steps(spec))},
                constants={**constants, "TILE": _lanes(tile)},
                num_warps=tile.num_warps,
                max_registers=tile.max_registers,
                allowed_spills=PACKED_SPILLS if spec.packed and tile.max_registers else 0,
                overlap=arch.overlaps_launches,
            )
        launches.append(launch)
    if "dinitial_state" in gradients:
        launches.append(
            Launch(
                backward_kernels.initial_gradients,
                grid=_state_grid(spec),
                **_arrays(arrays, layouts, f"{reads} cu_seqlens", dinitial_ptr="dinitial_state"),
                scalars={"T": spec.time},
                constants={**constants, "BLOCK_D": STATE_CHANNELS},
                num_warps=1,
                overlap=arch.overlaps_launches,
            )
        )
    for array in scratch:
        total = array.name.removesuffix("_partial")
        launches.append(sum_rows_launch(array.name, total, partials, prod(array.shape[1:]), arch))
    return Program(inputs, outputs, scratch, tuple(launches))


def _in_time(spec: Spec, layouts: Layouts, name: str) -> bool:
    """Whether time is contiguous and channels are not; not for packed sequences, which may begin at any step."""
    if spec.packed:
        return False
    _, time, channel = strides_of(name, spec.x.shape, layouts)
    return time == 1 and (channel != 1 or spec.channels == 1)


def _grid(spec: Spec, tile: Walk | Vectors) -> int:
    return spec.batch * tile.chunks(spec) * -(-spec.channels // tile.channels)


def _state_grid(spec: Spec) -> int:
    return spec.sequences * -(-spec.channels // STATE_CHANNELS)


def constants_of(spec: Convolution, arch: Arch) -> dict[str, Any]:
    """Constants of every kernel."""
    return {"SIZES": Sizes(spec.channels, spec.width), "OVERLAP": arch.overlaps_launches}


def activation_of(spec: Convolution, arch: Arch) -> Activation:
    """The activation of a call."""
    # Triton's interpreter does not have the approximate instructions.
    return Activation(spec.silu, arch.backend == "cuda" and not knobs.runtime.interpret)


def _lanes(walk: Walk) -> LaneTile:
    return LaneTile(walk.lanes, walk.channels, walk.unroll, walk.stages)


def _vectors(spec: Spec, vectors: Vectors) -> VectorTile:
    return VectorTile(vectors.channels, vectors.blocks, vectors.vector, even=spec.time % vectors.vector == 0)


def _arrays(arrays: tuple[Array, ...], layouts: Layouts, reads: str, **writes: str) -> dict[str, Any]:
    """`arrays` and `strided` of a launch that reads arrays by their strides, and writes dense ones."""
    strides = {array.name: strides_of(array.name, array.shape, layouts) for array in arrays}
    names = {name: name for name in reads.split()} | writes
    return {
        "arrays": pointers_to(arrays, **names),
        "strided": {name: _strided(name, strides.get(name)) for name in reads.split()},
    }


def _strided(name: str, strides: Strides | None) -> Rows | Weight | Line:
    """An array's strides as the kernels take them; zeros for an absent one."""
    if name == "weight":
        return Weight(None, *(strides or (0, 0)))
    if name in ("bias", "cu_seqlens"):
        return Line(None, *(strides or (0,)))
    row, step, channel = strides or (0, 0, 0)
    if name.endswith("_state"):  # (sequences, channels, entries)
        step, channel = channel, step
    return Rows(None, row, step, channel)
