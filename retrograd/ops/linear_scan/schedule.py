"""Which kernels run, in which order, on which arrays: a program for each pass, the same for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.arrays import arrays_of, pointers_to, strides_of
from retrograd.core.op import Layouts, Param
from retrograd.core.program import Array, Launch, Program, Scalar
from retrograd.core.rows import Strides

from . import backward as backward_kernels
from . import forward as forward_kernels
from . import plan, scan
from .spec import Spec


def forward(spec: Spec, layouts: Layouts, arch: Arch) -> Program:
    """(a, b, initial_state, cu_seqlens) -> (h, final_state)."""
    inputs = arrays_of(layouts, a=spec.a, b=spec.b, initial_state=spec.initial_state, cu_seqlens=spec.cu_seqlens)
    outputs = arrays_of({}, h=spec.b, final_state=spec.final_state if spec.return_final_state else None)
    names = {
        "a_ptr": "a",
        "b_ptr": "b",
        "initial_ptr": "initial_state",
        "h_ptr": "h",
        "final_ptr": "final_state",
    }
    kernels = (forward_kernels.reduce_tiles, forward_kernels.scan_tiles)
    return _scan(spec, arch, layouts, inputs, outputs, names, kernels, plan.forward(spec), spec.reverse, {})


def backward(spec: Spec, layouts: Layouts, arch: Arch, wanted: frozenset[str]) -> Program:
    """(dh, dfinal_state, a, h, initial_state, cu_seqlens) -> (da, db, dinitial_state), those that are wanted."""
    wants_a = "a" in wanted
    inputs = arrays_of(
        layouts,
        dh=spec.b,
        dfinal_state=spec.final_state if spec.return_final_state else None,
        a=spec.a,
        h=spec.b if wants_a else None,
        initial_state=spec.initial_state if wants_a else None,
        cu_seqlens=spec.cu_seqlens,
    )
    outputs = arrays_of(
        {},
        da=spec.a if wants_a else None,
        db=spec.b if "b" in wanted else None,
        dinitial_state=spec.initial_state if "initial_state" in wanted else None,
    )
    tile = plan.backward(spec)
    sums = wants_a and (spec.shares_batch or spec.shares_channels)
    rows = -(-spec.channels // tile.channels) if spec.shares_channels else 1
    rows *= spec.batch if spec.shares_batch else 1
    partial = arrays_of({}, da_partial=Param((rows, *spec.a.shape), spec.state_dtype) if sums else None)
    names = {
        "dh_ptr": "dh",
        "dfinal_ptr": "dfinal_state",
        "a_ptr": "a",
        "h_ptr": "h",
        "initial_ptr": "initial_state",
        "da_ptr": "da_partial" if sums else "da",
        "db_ptr": "db",
        "dinitial_ptr": "dinitial_state",
    }
    kernels = (backward_kernels.reduce_tiles, backward_kernels.scan_tiles)
    constants = {"SUM_CHANNELS": wants_a and spec.shares_channels}
    program = _scan(
        spec, arch, layouts, inputs, outputs, names, kernels, tile, not spec.reverse, constants, partial
    )  # fmt: skip
    if not sums:
        return program
    columns = prod(spec.a.shape) * (2 if spec.complex else 1)
    total = Launch(
        backward_kernels.sum_partials,
        grid=-(-columns // plan.BLOCK),
        arrays={"partial_ptr": "da_partial", "out_ptr": "da"},
        scalars={"rows": rows, "columns": columns},
        constants={"BLOCK": plan.BLOCK, "OVERLAP": arch.overlaps_launches},
        num_warps=plan.BLOCK // (4 * arch.warp_size),
        overlap=arch.overlaps_launches,
    )
    return Program(program.inputs, program.outputs, program.scratch, (*program.launches, total))


def _scan(
    spec: Spec,
    arch: Arch,
    layouts: Layouts,
    inputs: tuple[Array, ...],
    outputs: tuple[Array, ...],
    names: Mapping[str, str],
    kernels: tuple[Any, Any],
    tile: plan.Tile,
    reverse: bool,
    constants: Mapping[str, Any],
    scratch: tuple[Array, ...] = (),
) -> Program:
    """A pass in one direction: one launch, two where tiles hand on their state or are packed, four where they may not.

    Args:
        names: parameter of the scan kernel -> array.
        kernels: the one that reduces tiles to maps, and the one that scans them.
        constants: of the scan kernel alone.
    """
    reduce_kernel, scan_kernel = kernels
    slots = plan.tiles(spec, tile) * (1 if spec.cu_seqlens else spec.sequences)
    blocks = -(-spec.channels // tile.channels)
    alone = spec.cu_seqlens is None and spec.time <= tile.time
    one_pass = not alone and plan.one_pass(arch)
    parts = 2 if spec.complex else 1
    number = Param((slots, spec.channels), spec.state_dtype)
    scratch += arrays_of(
        {},
        words=Param((slots, 3 * parts, spec.channels, 2), "float32") if one_pass else None,
        bounds=Param((spec.sequences + 1,), "float32") if spec.cu_seqlens else None,
        tile_P=None if alone or one_pass else number,
        tile_l=None if alone or one_pass else number,
        tile_state=None if alone or one_pass else number,
    )
    there = (*inputs, *outputs, *scratch)
    strides = {array.name: _strides(spec, array, layouts) for array in inputs}
    shape: dict[str, Scalar] = {
        "T": spec.time,
        "D": spec.channels,
        "sequences": spec.sequences,
        "blocks": blocks,
    }
    flags = {"COMPLEX": spec.complex, **tile.constants(), "OVERLAP": arch.overlaps_launches}

    def launch(kernel: Any, programs: int, arrays: Mapping[str, str | None], extra: Mapping[str, Any]) -> Launch:
        of_inputs: dict[str, Scalar] = {
            f"{parameter.removesuffix('_ptr')}_strides": strides[name]
            for parameter, name in arrays.items()
            if name in strides
        }
        return Launch(
            kernel,
            grid=programs,
            arrays=arrays,
            scalars={**of_inputs, **shape},
            constants={**flags, **extra},
            num_warps=tile.num_warps(arch),
            overlap=arch.overlaps_launches,
        )

    launches = []
    first, second = (names[parameter] for parameter in kernels[0].arg_names[:2])
    if one_pass or spec.cu_seqlens:
        words = prod((slots, 3 * parts, spec.channels)) if one_pass else 0
        launches.append(
            Launch(
                scan.prepare,
                grid=max(1, -(-words // plan.BLOCK)) if slots * blocks else 0,
                arrays=pointers_to(
                    there,
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
                    # Read by no kernel: XLA makes one call of two that are equal, and two scans would share its words.
                    "direction": int(reverse),
                },
                constants={"BLOCK": plan.BLOCK, "OVERLAP": arch.overlaps_launches},
                num_warps=4,
                overlap=arch.overlaps_launches,
            )
        )
    if not alone and not one_pass:
        maps = {parameter: names[parameter] for parameter in kernels[0].arg_names[:2]}
        reduced = pointers_to(there, **maps, bounds_ptr="bounds", P_ptr="tile_P", l_ptr="tile_l")
        launches.append(launch(reduce_kernel, slots * blocks, reduced, {"REVERSE": reverse}))
        begins = names["dfinal_ptr" if "dfinal_ptr" in names else "initial_ptr"]
        carried = pointers_to(
            there, P_ptr="tile_P", l_ptr="tile_l", initial_ptr=begins, bounds_ptr="bounds", state_ptr="tile_state"
        )
        launches.append(launch(scan.carry_states, spec.sequences * blocks, carried, {}))
    order = scan_kernel.arg_names
    between = {"words_ptr": "words", "bounds_ptr": "bounds", "state_ptr": "tile_state"}
    all_pointers = pointers_to(there, **{p: ({**names, **between})[p] for p in order if p.endswith("_ptr")})
    launches.append(launch(scan_kernel, slots * blocks, all_pointers, {"REVERSE": reverse, **constants}))
    return Program(inputs, outputs, scratch, tuple(launches))


def _strides(spec: Spec, array: Array, layouts: Layouts) -> Strides:
    """An array's strides as kernels take them: 0 along what is shared."""
    strides = strides_of(array.name, array.shape, layouts)
    if array.name != "a":
        return strides
    batch, time, channel = strides
    return 0 if spec.shares_batch else batch, time, 0 if spec.shares_channels else channel
