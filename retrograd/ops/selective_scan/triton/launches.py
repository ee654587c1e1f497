"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import (
    Array,
    Launch,
    Layouts,
    Program,
    Scalar,
    Strides,
    pointers_to,
    read_in_place,
    strides_of,
)
from retrograd.core.spec import Param, Pass

from ..op import Spec
from ..passes import FP32, Unfinished
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import plan
from .plan import Tile

FORWARD = "x dt A B C D z dt_bias initial_state cu_seqlens y final_state states"
BACKWARD = (
    "dy dfinal_state x dt A B C D z dt_bias cu_seqlens states entering dx ddt dz dinitial_state"
    " dBC_partial dA_partial dB_partial dC_partial dD_partial ddt_bias_partial"
)


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtypes."""
    return spec.x.dtype in KERNEL_FLOATS and not spec.complex


def planned(spec: Spec, arch: Arch, which: Pass) -> Tile:
    """The tile of a pass."""
    return (plan.forward if which == "fwd" else plan.backward)(spec, arch)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The arguments -> y, final_state, states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    initial = _strides("initial_state", spec.initial_state, layouts)
    launch = Launch(
        forward_kernels.forward_scan,
        grid=spec.sequences * _blocks(spec, tile),
        arrays=pointers_to(inputs + outputs, FORWARD),
        scalars={
            **_geometry(spec, tile, layouts, ("x", "dt", "z", "B", "C")),
            "initial_row_stride": initial[0],
            "initial_tile_strides": initial[1:],
        },
        constants=_constants(spec, tile, arch),
        num_warps=tile.num_warps,
        max_registers=tile.max_registers,
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The gradients of the results, the arguments, states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    blocks = _blocks(spec, tile)
    unfinished = Unfinished(spec, outputs, blocks, spec.sequences)
    chunk_states = (spec.sequences * blocks, spec.chunk // tile.group, tile.states, tile.channels)
    scratch = (Array("entering", chunk_states, FP32), *unfinished.scratch)
    final = _strides("dfinal_state", spec["dfinal_state"], layouts)
    launch = Launch(
        backward_kernels.backward_scan,
        grid=spec.sequences * blocks,
        arrays=pointers_to(inputs + outputs + scratch, BACKWARD),
        scalars={
            **_geometry(spec, tile, layouts, ("x", "dt", "z", "B", "C", "dy")),
            "final_row_stride": final[0],
            "final_tile_strides": final[1:],
            "scratch_tile_strides": (1, tile.channels),
        },
        constants=_constants(spec, tile, arch),
        num_warps=tile.num_warps,
        max_registers=tile.max_registers,
        allowed_spills=20,  # spill instructions of the compilers for sm_80 and sm_100 at 255 registers
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, scratch, (launch, *unfinished.launches(arch)))


def _blocks(spec: Spec, tile: Tile) -> int:
    """Programs that share a sequence."""
    return spec.channels // max(tile.unit, 1) * tile.blocks_a_unit


def _strides(name: str, param: Param | None, layouts: Layouts) -> Strides:
    """An array's strides; zeros if it is absent."""
    return (0, 0, 0) if param is None else strides_of(name, param.shape, layouts)


def _geometry(spec: Spec, tile: Tile, layouts: Layouts, per_row: tuple[str, ...]) -> dict[str, Scalar]:
    """Sizes, and strides as the kernels take them."""
    strides = {name: _strides(name, spec[name], layouts) for name in ("x", "dt", "z", "dy")}
    tiles: dict[str, Strides] = {"A": _strides("A", spec.A, layouts)}
    for name in ("B", "C"):
        own = _strides(name, spec[name], layouts)
        if spec.constant(name):
            tiles[name], strides[name] = own, (0, 0, 0, 0)
        else:
            tiles[name], strides[name] = (0, 0), own if len(own) == 4 else (*own[:2], 0, own[2])
    scalars: dict[str, Scalar] = {
        "T": spec.time,
        "sequences": spec.sequences,
        "channels": spec.channels,
        "unit": tile.unit,
        "blocks_a_unit": tile.blocks_a_unit,
        "channels_a_B": spec.channels // spec.groups("B"),
        "channels_a_C": spec.channels // spec.groups("C"),
        "row_strides": tuple(strides[name][0] for name in per_row),
        "D_stride": _strides("D", spec.D, layouts)[0],
        "dt_bias_stride": _strides("dt_bias", spec.dt_bias, layouts)[0],
        "state_tile_strides": (spec.N, 1),
    }
    scalars |= {f"{name}_strides": strides[name][1:] for name in per_row}
    return scalars | {f"{name}_tile_strides": own for name, own in tiles.items()}


def _constants(spec: Spec, tile: Tile, arch: Arch) -> dict[str, Any]:
    return {
        "N": spec.N,
        "BLOCK_N": tile.states,
        "BLOCK_D": tile.channels,
        "KEEP": spec.chunk,
        "GROUP": tile.group,
        "B_CONSTANT": spec.constant("B"),
        "C_CONSTANT": spec.constant("C"),
        "OVERLAP": arch.overlaps_launches,
    }
