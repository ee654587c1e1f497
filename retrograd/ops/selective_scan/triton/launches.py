"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import (
    Array,
    Launch,
    Layouts,
    Program,
    Strides,
    fields_of,
    read_in_place,
    strides_of,
)
from retrograd.core.spec import Pass

from ..op import Spec
from ..passes import FP32, Unfinished
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import plan
from .arrays import Channels, Matrix, Outputs, Parameter, Parameters, Rows, Sizes, States, Steps, Tiles
from .plan import Tile


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
    launch = _scan(forward_kernels.forward_scan, spec, inputs + outputs, layouts, arch, tile)
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
    arrays, together = inputs + outputs + scratch, {"parameters": Parameters, "outputs": Outputs}
    launch = _scan(backward_kernels.backward_scan, spec, arrays, layouts, arch, tile, **together)
    launch = replace(launch, allowed_spills=20)  # of the compilers for sm_80 and sm_100 at 255 registers
    return Program(inputs, outputs, scratch, (launch, *unfinished.launches(arch)))


def _blocks(spec: Spec, tile: Tile) -> int:
    """Programs that share a sequence."""
    return spec.channels // max(tile.unit, 1) * tile.blocks_a_unit


def _scan(
    kernel: Any, spec: Spec, arrays: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile, **together: Any
) -> Launch:
    """The launch of a pass's kernel."""
    parameters = fields_of(kernel.arg_names[: kernel.arg_names.index("rows")], together)
    present = {array.name for array in arrays}
    named = {parameter: _array(spec, parameter) for parameter in parameters}
    return Launch(
        kernel,
        grid=spec.sequences * _blocks(spec, tile),
        arrays={parameter: name if name in present else None for parameter, name in named.items()},
        strided={name: _strided(name, spec, layouts, tile) for name in parameters if not name.endswith("_ptr")},
        together=together,
        scalars={"rows": _rows(spec, layouts), "channels": _channels(spec, tile)},
        constants={
            "SIZES": Sizes(spec.N, tile.channels, tile.states, spec.chunk, tile.group),
            "OVERLAP": arch.overlaps_launches,
        },
        num_warps=tile.num_warps,
        max_registers=tile.max_registers,
        overlap=arch.overlaps_launches,
    )


def _array(spec: Spec, parameter: str) -> str | None:
    """The array of a parameter; B and C have one for each of their forms."""
    name = parameter.removesuffix("_ptr").removeprefix("constant_")
    other = name in ("B", "C") and spec.constant(name) != parameter.startswith("constant_")
    return None if other else name


def _strided(parameter: str, spec: Spec, layouts: Layouts, tile: Tile) -> NamedTuple:
    """An array's strides as the kernels take them; zeros for an absent array."""
    if parameter == "states":
        return Tiles(None, channel=spec.N, state=1)
    if parameter == "entering":
        return Tiles(None, channel=1, state=tile.channels)
    name = _array(spec, parameter)
    own = _strides(name, layouts, spec) if name else ()
    if parameter in ("x", "dt", "z", "dy"):
        return Steps(None, *own[1:]) if own else Steps(None, 0, 0)
    if parameter in ("B", "C"):
        return Matrix(None, own[1], 0 if len(own) == 3 else own[2], own[-1]) if own else Matrix(None, 0, 0, 0)
    if parameter in ("D", "dt_bias"):
        return Parameter(None, *(own or (0,)))
    if parameter in ("initial_state", "dfinal_state"):
        return States(None, *(own or (0, 0, 0)))
    return Tiles(None, *(own or (0, 0)))


def _strides(name: str, layouts: Layouts, spec: Spec) -> Strides:
    """An array's strides; none if it is absent."""
    param = spec[name]
    return () if param is None else strides_of(name, param.shape, layouts)


def _rows(spec: Spec, layouts: Layouts) -> Rows:
    own = {name: _strides(name, layouts, spec) for name in ("x", "dt", "z", "dy", "B", "C")}
    of_batch = {name: strides[0] if len(strides) > 2 else 0 for name, strides in own.items()}
    return Rows(spec.time, spec.sequences, **of_batch)


def _channels(spec: Spec, tile: Tile) -> Channels:
    of_B, of_C = (spec.channels // spec.groups(name) for name in ("B", "C"))
    return Channels(spec.channels, tile.unit, tile.blocks_a_unit, of_B, of_C)
