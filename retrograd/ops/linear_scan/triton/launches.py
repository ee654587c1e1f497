"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.kernels.reduce import sum_in_order_launch
from retrograd.core.program import Array, Launch, Layouts, Program, Scalar, Strides, arrays_of, pointers_to, strides_of
from retrograd.core.spec import Param, Pass

from ..op import Spec
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import scan
from .arrays import Counts, States, Steps
from .plan import BLOCK, Plan, planned, tiles

__all__ = ["backward", "forward", "planned", "suits"]


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtypes."""
    return spec.compute_dtype in ("float32", "complex64")


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """(a, b, initial_state, cu_seqlens) -> (h, final_state)."""
    inputs = arrays_of(layouts, **spec.params(names))
    pointers = {
        "a": "a",
        "b": "b",
        "initial_state": "initial_state",
        "h_ptr": "h",
        "final_ptr": "final_state",
    }
    kernels = (forward_kernels.reduce_tiles, forward_kernels.scan_tiles)
    return _scan(spec, arch, layouts, inputs, outputs, pointers, kernels, plan, spec.reverse, {})


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """(dh, dfinal_state, a, h, initial_state, cu_seqlens) -> the wanted ones of (da, db, dinitial_state)."""
    inputs = arrays_of(layouts, **spec.params(names))
    wants_da = any(array.name == "da" for array in outputs)
    sums = wants_da and (spec.shares_batch or spec.shares_channels)
    rows = -(-spec.channels // plan.tile.channels) if spec.shares_channels else 1
    rows *= spec.batch if spec.shares_batch else 1
    partial = arrays_of({}, da_partial=Param((rows, *spec.a.shape), spec.compute_dtype) if sums else None)
    pointers = {
        "dh": "dh",
        "dfinal_state": "dfinal_state",
        "a": "a",
        "h": "h",
        "initial_state": "initial_state",
        "da_ptr": "da_partial" if sums else "da",
        "db_ptr": "db",
        "dinitial_ptr": "dinitial_state",
    }
    kernels = (backward_kernels.reduce_tiles, backward_kernels.scan_tiles)
    constants = {"SUM_CHANNELS": wants_da and spec.shares_channels}
    program = _scan(
        spec, arch, layouts, inputs, outputs, pointers, kernels, plan, not spec.reverse, constants, partial
    )  # fmt: skip
    if not sums:
        return program
    columns = prod(spec.a.shape) * (2 if spec.complex else 1)
    total = sum_in_order_launch("da_partial", "da", rows, columns, arch)
    return Program(program.inputs, program.outputs, program.scratch, (*program.launches, total))


def _scan(
    spec: Spec,
    arch: Arch,
    layouts: Layouts,
    inputs: tuple[Array, ...],
    outputs: tuple[Array, ...],
    pointers: Mapping[str, str],
    kernels: tuple[Any, Any],
    plan: Plan,
    reverse: bool,
    constants: Mapping[str, Any],
    scratch: tuple[Array, ...] = (),
) -> Program:
    """A pass in one direction: one launch for a single tile, two in one pass, else three, or four if packed.

    Args:
        pointers: parameter of the scan kernel -> array.
        kernels: the one that reduces tiles to maps, and the one that scans them.
        constants: further constants of the scan kernel.
    """
    reduce_kernel, scan_kernel = kernels
    tile = plan.tile
    slots = tiles(spec, tile) * (1 if spec.packed else spec.sequences)
    blocks = -(-spec.channels // tile.channels)
    alone = not spec.packed and spec.time <= tile.time
    one_pass = plan.one_pass and not alone
    parts = 2 if spec.complex else 1
    number = Param((slots, spec.channels), spec.compute_dtype)
    scratch += arrays_of(
        {},
        words=Param((slots, 3 * parts, spec.channels, 2), "float32") if one_pass else None,
        bounds=Param((spec.sequences + 1,), "float32") if spec.packed else None,
        tile_P=None if alone or one_pass else number,
        tile_l=None if alone or one_pass else number,
        tile_state=None if alone or one_pass else number,
    )
    present = (*inputs, *outputs, *scratch)
    strides = {array.name: strides_of(array.name, array.shape, layouts) for array in inputs}
    sizes: dict[str, Scalar] = {"counts": Counts(spec.time, spec.sequences, blocks), "D": spec.channels}
    flags = {"COMPLEX": spec.complex, "TILE": tile.sizes, "OVERLAP": arch.overlaps_launches}

    def launch(kernel: Any, programs: int, arrays: Mapping[str, str | None], extra: Mapping[str, Any]) -> Launch:
        read = [name for name in arrays if not name.endswith("_ptr")]
        return Launch(
            kernel,
            grid=programs,
            arrays=arrays,
            strided={name: _strided(spec, name, strides.get(arrays[name] or "")) for name in read},
            scalars=sizes,
            constants={**flags, **extra},
            num_warps=tile.num_warps(arch),
            overlap=arch.overlaps_launches,
            thread_wise=not extra.get("SUM_CHANNELS"),  # whose vectors of rows are shorter and laid out otherwise
        )

    launches = []
    first, second = (pointers[parameter] for parameter in reduce_kernel.arg_names[:2])
    if one_pass or spec.packed:
        words = prod((slots, 3 * parts, spec.channels)) if one_pass else 0
        launches.append(
            Launch(
                scan.prepare,
                grid=max(1, -(-words // BLOCK)) if slots * blocks else 0,
                arrays=pointers_to(
                    present,
                    a_ptr=first,
                    b_ptr=second,
                    initial_ptr="initial_state",
                    cu_seqlens_ptr="cu_seqlens",
                    words_ptr="words",
                    bounds_ptr="bounds",
                ),
                scalars={
                    "words": words,
                    "T": spec.time,
                    "sequences": spec.sequences,
                    # Read by no kernel: XLA merges two equal calls, and two scans would then share the words.
                    "direction": int(reverse),
                },
                constants={"BLOCK": BLOCK, "OVERLAP": arch.overlaps_launches},
                num_warps=4,
                overlap=arch.overlaps_launches,
            )
        )
    if not alone and not one_pass:
        maps = {parameter: pointers[parameter] for parameter in reduce_kernel.arg_names[:2]}
        reduced = pointers_to(present, **maps, bounds_ptr="bounds", P_ptr="tile_P", l_ptr="tile_l")
        launches.append(launch(reduce_kernel, slots * blocks, reduced, {"REVERSE": reverse}))
        begins = pointers["dfinal_state" if "dfinal_state" in pointers else "initial_state"]
        carried = pointers_to(
            present, P_ptr="tile_P", l_ptr="tile_l", initial_state=begins, bounds_ptr="bounds", state_ptr="tile_state"
        )
        launches.append(launch(scan.carry_states, spec.sequences * blocks, carried, {}))
    own = {**pointers, "words_ptr": "words", "bounds_ptr": "bounds", "state_ptr": "tile_state"}
    all_pointers = pointers_to(present, **{name: own[name] for name in scan_kernel.arg_names if name in own})
    launches.append(launch(scan_kernel, slots * blocks, all_pointers, {"REVERSE": reverse, **constants}))
    return Program(inputs, outputs, scratch, tuple(launches))


def _strided(spec: Spec, name: str, strides: Strides | None) -> Steps | States:
    """An array's strides as kernels take them: 0 along shared axes, and of an absent one."""
    if name.endswith("_state"):
        return States(None, *(strides or (0, 0)))
    batch, step, channel = strides or (0, 0, 0)
    if name == "a":
        return Steps(None, 0 if spec.shares_batch else batch, step, 0 if spec.shares_channels else channel)
    return Steps(None, batch, step, channel)
