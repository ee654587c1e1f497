"""Which kernels run, in which order, on which arrays: a program for each pass, the same for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.arrays import pointers_to, read_in_place, strides_of
from retrograd.core.chunks import places
from retrograd.core.kernels.reduce import sum_blocks_launch, sum_rows_launch
from retrograd.core.op import Layouts, Param
from retrograd.core.program import Array, Launch, Program, Scalar
from retrograd.core.rows import Strides

from . import backward as backward_kernels
from . import forward as forward_kernels
from . import plan
from .gluon import launches as gluon
from .gluon.spans import PIECE
from .spec import Spec

FP32 = "float32"
FORWARD = "x dt A B C D z dt_bias initial_state cu_seqlens y final_state states"
BACKWARD = (
    "dy dfinal_state x dt A B C D z dt_bias cu_seqlens states entering dx ddt dz dinitial_state"
    " dBC_partial dA_partial dB_partial dC_partial dD_partial ddt_bias_partial"
)


def forward(spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch) -> Program:
    """The arguments -> y, final_state, states."""
    in_gluon = gluon.takes_forward(spec, arch)
    inputs, layouts = _inputs(names, spec, layouts, in_gluon)
    if in_gluon:
        scratch = (gluon.forward_scratch(spec),)
        return Program(
            inputs, outputs, scratch, gluon.forward_launches(spec, inputs + outputs + scratch, layouts, arch)
        )
    tile = plan.forward(spec, arch)
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


def backward(spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch) -> Program:
    """The gradients of the results, the arguments, states -> the gradients wanted.

    All others are computed as well: a kernel without them would be another binary, in which the compiler fuses other
    multiplications with additions, and a gradient's bits would depend on what else is asked for.
    """
    in_gluon = gluon.takes_backward(spec, arch)
    inputs, layouts = _inputs(names, spec, layouts, in_gluon)
    tile = plan.backward(spec, arch)
    made = {array.name for array in outputs}
    blocks = spec.channels // gluon.backward_channels(spec) if in_gluon else _blocks(spec, tile)
    rows = spec.batch * spec.time
    parts = [name for name in ("C", "B") if not spec.constant(name)]
    alike = {name: spec[name] for name in ("x", "dt", "z", "initial_state")}
    unwanted = {f"d{name}": param for name, param in alike.items() if param and f"d{name}" not in made}
    # Partial sums over sequences, or pieces of them, each (rows, the gradient's shape).
    summed = {name: spec[name] for name in ("A", "D", "dt_bias", *(n for n in "BC" if spec.constant(n)))}
    sums = {name: param for name, param in summed.items() if param}
    summands = spec.batch * places(spec, PIECE) if in_gluon else spec.sequences
    chunk_states = (spec.sequences * blocks, spec.chunk // tile.group, tile.states, tile.channels)
    sizes = {
        **({"dBC_partial": (rows, blocks, len(parts), spec.N)} if parts else {}),
        **{f"d{name}_partial": (summands, *param.shape) for name, param in sums.items()},
    }
    scratch = (
        gluon.backward_scratch(spec) if in_gluon else Array("entering", chunk_states, FP32),
        *(Array(name, shape, FP32) for name, shape in sizes.items()),
        *(Array(name, param.shape, param.dtype) for name, param in unwanted.items()),
    )
    final = _strides("dfinal_state", spec.state, layouts) if spec.return_final_state else (0, 0, 0)
    arrays = inputs + outputs + scratch
    if in_gluon:
        launches = list(gluon.backward_launches(spec, arrays, layouts, arch))
    else:
        launches = [
            Launch(
                backward_kernels.backward_scan,
                grid=spec.sequences * blocks,
                arrays=pointers_to(arrays, BACKWARD),
                scalars={
                    **_geometry(spec, tile, layouts, ("x", "dt", "z", "B", "C", "dy")),
                    "final_row_stride": final[0],
                    "final_tile_strides": final[1:],
                    "scratch_tile_strides": (1, tile.channels),
                },
                constants=_constants(spec, tile, arch),
                num_warps=tile.num_warps,
                max_registers=tile.max_registers,
                parked=20,  # what the compilers for sm_80 and sm_100 leave over at 255 registers
                overlap=arch.overlaps_launches,
            )
        ]
    for part, name in enumerate(parts):
        if f"d{name}" in made:
            groups = spec.groups(name)
            out, each = f"d{name}", blocks // groups
            launches.append(sum_blocks_launch("dBC_partial", out, rows, groups, each, spec.N, arch, part, len(parts)))
    for name, param in sums.items():
        if f"d{name}" in made:
            columns = spec.channels * (spec.N if len(param.shape) == 2 else 1)
            launches.append(sum_rows_launch(f"d{name}_partial", f"d{name}", summands, columns, arch))
    return Program(inputs, outputs, scratch, tuple(launches))


def _blocks(spec: Spec, tile: plan.Tile) -> int:
    """Programs that share a sequence."""
    return spec.channels // max(tile.unit, 1) * tile.blocks_a_unit


def _inputs(names: tuple[str, ...], spec: Spec, layouts: Layouts, in_gluon: bool) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that it reads where they lie; the others are copied."""
    params = {**spec.arrays(), "dy": spec.x, "dfinal_state": spec.state, "states": spec.kept}
    read = {name: params[name] for name in names}
    return read_in_place(read, layouts, gluon.in_place if in_gluon else lambda *_: True)


def _strides(name: str, param: Param | None, layouts: Layouts) -> Strides:
    """An array's strides; zeros where it is absent."""
    return (0, 0, 0) if param is None else strides_of(name, param.shape, layouts)


def _geometry(spec: Spec, tile: plan.Tile, layouts: Layouts, per_row: tuple[str, ...]) -> dict[str, Scalar]:
    """Sizes, and strides as the kernels take them."""
    params: Mapping[str, Param | None] = {**spec.arrays(), "dy": spec.x}
    strides = {name: _strides(name, params.get(name), layouts) for name in ("x", "dt", "z", "dy")}
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


def _constants(spec: Spec, tile: plan.Tile, arch: Arch) -> dict[str, Any]:
    return {
        "N": spec.N,
        "BLOCK_N": tile.states,
        "BLOCK_D": tile.channels,
        "KEEP": spec.chunk,
        "GROUP": tile.group,
        "SOFTPLUS": spec.dt_softplus,
        "B_CONSTANT": spec.constant("B"),
        "C_CONSTANT": spec.constant("C"),
        "OVERLAP": arch.overlaps_launches,
    }
