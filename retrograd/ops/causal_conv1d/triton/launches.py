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
from retrograd.core.program import Array, Launch, Layouts, Program, Scalar, arrays_of, pointers_to, strides_of
from retrograd.core.spec import Pass

from ..op import Spec
from . import backward as backward_kernels
from . import forward as forward_kernels
from .plan import Plan, Vectors, Walk, planned

__all__ = ["backward", "forward", "planned", "suits"]

WIDTHS = (2, 3, 4)  # that the kernels take

STATE_CHANNELS = 128  # per program of the kernels for states, which has one warp

PACKED_SPILLS = 28  # spill instructions of sums over time where packed sequences leave no register for them

# Array -> kernel parameter, if it is not the array's own name.
SHORT = {"initial_state": "initial", "final_state": "final", "dinitial_state": "dinitial", "dfinal_state": "dfinal"}


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the width and the dtype."""
    return spec.width in WIDTHS and spec.x.dtype in KERNEL_FLOATS


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> y and, if returned, final_state."""
    inputs = arrays_of(layouts, **spec.params(names))
    reads = "x weight bias initial_state"
    if _in_time(spec, layouts, "x"):
        vectors = plan.vectors
        main = Launch(
            forward_kernels.forward_time,
            grid=_grid(spec, vectors),
            arrays=_pointers(inputs + outputs, f"{reads} y"),
            scalars={**_strides(inputs, layouts, reads), "T": spec.time, "tiles": vectors.tiles(spec)},
            constants={**_constants(spec, arch), **_vectors(spec, vectors), **_activation(spec, arch)},
            num_warps=vectors.num_warps,
            overlap=arch.overlaps_launches,
        )
    else:
        walk = plan.walk
        reads += " cu_seqlens"
        main = Launch(
            forward_kernels.forward_channels,
            grid=_grid(spec, walk),
            arrays=_pointers(inputs + outputs, f"{reads} y"),
            scalars={**_strides(inputs, layouts, reads), **_lengths(spec, walk)},
            constants={**_constants(spec, arch), **_walk(walk), **_activation(spec, arch)},
            num_warps=walk.num_warps,
            overlap=arch.overlaps_launches,
        )
    if not spec.return_final_state:
        return Program(inputs, outputs, (), (main,))
    reads = "x initial_state cu_seqlens"
    states = Launch(
        forward_kernels.final_states,
        grid=_state_grid(spec),
        arrays=_pointers(inputs + outputs, f"{reads} final_state"),
        scalars={**_strides(inputs, layouts, reads), "T": spec.time},
        constants={**_constants(spec, arch), "BLOCK_D": STATE_CHANNELS},
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
    pointers = {f"{array.name.removesuffix('_partial')}_ptr": array.name for array in scratch}
    reads = "dy dfinal_state x weight bias initial_state"
    launches = []
    if gradients.keys() & {"dx", "dweight", "dbias"}:
        if isinstance(tile, Vectors):
            launch = Launch(
                backward_kernels.backward_time,
                grid=_grid(spec, tile),
                arrays=_pointers(inputs + outputs, f"{reads} dx dweight dbias") | pointers,
                scalars={**_strides(inputs, layouts, reads), "T": spec.time, "tiles": tile.tiles(spec)},
                constants={
                    **_constants(spec, arch),
                    **_vectors(spec, tile),
                    **_activation(spec, arch),
                    "X_IN_TIME": in_time["x"],
                    "DY_IN_TIME": in_time["dy"],
                },
                num_warps=tile.num_warps,
                overlap=arch.overlaps_launches,
            )
        else:
            launch = Launch(
                backward_kernels.backward_channels,
                grid=_grid(spec, tile),
                arrays=_pointers(inputs + outputs, f"{reads} cu_seqlens dx dweight dbias") | pointers,
                scalars={**_strides(inputs, layouts, f"{reads} cu_seqlens"), **_lengths(spec, tile)},
                constants={**_constants(spec, arch), **_walk(tile), **_activation(spec, arch)},
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
                arrays=_pointers(inputs + outputs, f"{reads} cu_seqlens dinitial_state"),
                scalars={**_strides(inputs, layouts, f"{reads} cu_seqlens"), "T": spec.time},
                constants={**_constants(spec, arch), "BLOCK_D": STATE_CHANNELS, **_activation(spec, arch)},
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


def _lengths(spec: Spec, walk: Walk) -> dict[str, Scalar]:
    return {"T": spec.time, "sequences": spec.sequences, "steps": walk.steps(spec)}


def _constants(spec: Spec, arch: Arch) -> dict[str, Any]:
    return {"D": spec.channels, "W": spec.width, "OVERLAP": arch.overlaps_launches}


def _activation(spec: Spec, arch: Arch) -> dict[str, Any]:
    """FAST selects approximate instructions, which Triton's interpreter does not have."""
    return {"SILU": spec.silu, "FAST": arch.backend == "cuda" and not knobs.runtime.interpret}


def _walk(walk: Walk) -> dict[str, int]:
    return {"LANES": walk.lanes, "BLOCK_D": walk.channels, "UNROLL": walk.unroll, "STAGES": walk.stages}


def _vectors(spec: Spec, vectors: Vectors) -> dict[str, Any]:
    return {
        "CHANNELS": vectors.channels,
        "BLOCKS": vectors.blocks,
        "VECTOR": vectors.vector,
        "EVEN": spec.time % vectors.vector == 0,
    }


def _pointers(arrays: tuple[Array, ...], names: str) -> dict[str, str | None]:
    return pointers_to(arrays, **{f"{SHORT.get(name, name)}_ptr": name for name in names.split()})


def _strides(arrays: tuple[Array, ...], layouts: Layouts, names: str) -> dict[str, Scalar]:
    """Each array's strides; zeros for an absent one."""
    strides = {array.name: strides_of(array.name, array.shape, layouts) for array in arrays}
    return {f"{SHORT.get(name, name)}_strides": strides.get(name, (0, 0, 0)) for name in names.split()}
