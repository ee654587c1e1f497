"""The launches of this folder's kernels, and the calls that they take."""

from __future__ import annotations

from retrograd.core.arch import KIB, Arch
from retrograd.core.dtypes import BYTES, KERNEL_FLOATS
from retrograd.core.program import (
    Array,
    Launch,
    Layout,
    Layouts,
    Program,
    Strides,
    dense,
    pointers_to,
    read_in_place,
    strides_of,
)
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param, Pass, places

from ..op import Spec
from ..passes import FP32, Unfinished
from . import spans
from .backward import backward_scan
from .forward import forward_scan
from .spans import Spans
from .walk import walk

FORWARD = "x dt A B C D z dt_bias initial_state cu_seqlens entering y final_state states"
BACKWARD = (
    "dy dfinal_state x dt A B C D z dt_bias cu_seqlens states leaving dx ddt dz dinitial_state"
    " dBC_partial dA_partial dD_partial ddt_bias_partial"
)
ROWS = ("x", "dt", "z", "dy")  # arrays (batch, time, channels)
DENSE = ("A", "D", "dt_bias", "initial_state", "dfinal_state", "states")

STATES = (8, 16, 32, 64)  # N
FORWARD_CHANNELS = 32
STAGES = 5
# A backward program has 1,024 states: 4 warps walk back over them, 4 prepare the steps (make.py) and 4 finish them
# (finish.py). Its shared memory and registers fill a multiprocessor.
BACKWARD_STATES = 1024
BACKWARD_WARPS = 4  # of each kind
REGISTERS = 168  # per thread, on average; make and finish warps have the numbers below, walking warps the rest
MAKE_REGISTERS = 160
MAKE_REGISTERS_64 = 184
FINISH_REGISTERS = 112
# The walk of the states alone: few states per thread, so that few channels occupy all schedulers.
WALK_CHANNELS = 16
WALK_STATES = 2
WALK_STEPS = 32  # of a group, but at most a chunk
WALK_STAGES = 6
LARGE_SHARED = 227 * KIB  # of data-centre GPUs since Hopper; these kernels were never run on older ones


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether 16-byte copies with 32-bit offsets reach all arrays, and a program's channels share B and C.

    The layouts are not considered: if they selected the kernels, a row's bits would depend on them.
    """
    if arch.backend != "cuda" or arch.shared_memory < LARGE_SHARED or spec.N not in STATES:
        return False
    if spec.x.dtype not in KERNEL_FLOATS or spec.complex or spec.constant("B") or spec.constant("C"):
        return False
    channels = channels_of(spec, which)
    if not spec.channels or any(spec.channels // spec.groups(name) % channels for name in "BC"):
        return False
    params = spec.params(spec.arguments)
    if any(params[name].dtype != spec.x.dtype for name in ROWS if name in params):
        return False
    return all(_reaches(name, param, dense(param.shape)) for name, param in params.items())


def channels_of(spec: Spec, which: Pass) -> int:
    """Channels of a program."""
    return FORWARD_CHANNELS if which == "fwd" else BACKWARD_STATES // spec.N


def planned(spec: Spec, arch: Arch, which: Pass) -> Spans:
    """The spans of a pass."""
    return (spans.forward if which == "fwd" else spans.backward)(spec, channels_of(spec, which))


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array in place."""
    if name in DENSE:
        return layout.aligned and is_dense(param.shape, layout.strides)
    return layout.aligned and _reaches(name, param, layout.strides)


def _reaches(name: str, param: Param, strides: Strides) -> bool:
    """Whether 16-byte copies with 32-bit offsets reach every row of arrays like x, and of B and C."""
    if name not in (*ROWS, "B", "C"):
        return True
    unit = 16 // BYTES[param.dtype] if name in ROWS else 4
    if strides[-1] != 1 or any(stride % unit for stride in strides[:-1]):
        return False
    return param.shape[1] * strides[1] // unit < 2**31


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Spans
) -> Program:
    """The arguments -> y, final_state, states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (_between(spec, "entering", plan),)
    arrays = inputs + outputs + scratch
    states = 8 if spec.N <= 16 else 16  # per thread; more mean fewer sums across threads, and fewer threads
    warps = FORWARD_CHANNELS * spec.N // (32 * states)
    scan = Launch(
        forward_scan,
        grid=plan.programs * plan.count,
        arrays=pointers_to(arrays, FORWARD),
        scalars={**_geometry(spec, layouts, ("x", "dt", "z"), "BC"), **plan.scalars},
        constants={
            "N": spec.N,
            "BLOCK_D": FORWARD_CHANNELS,
            "STATES": states,
            "KEEP": spec.chunk,
            "STAGES": STAGES,
            "WARPS": warps,
            "OVERLAP": arch.overlaps_launches,
        },
        num_warps=warps,
        overlap=arch.overlaps_launches,
    )
    ahead = (_walk(spec, arrays, layouts, arch, plan, back=False),)
    return Program(inputs, outputs, scratch, (*(ahead if plan.count > 1 else ()), scan))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Spans
) -> Program:
    """The gradients of the results, the arguments, states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    channels = channels_of(spec, "bwd")
    unfinished = Unfinished(spec, outputs, spec.channels // channels, spec.batch * places(spec, spans.PIECE))
    scratch = (_between(spec, "leaving", plan), *unfinished.scratch)
    arrays = inputs + outputs + scratch
    scan = Launch(
        backward_scan,
        grid=plan.programs * plan.count,
        arrays=pointers_to(arrays, BACKWARD),
        scalars={**_geometry(spec, layouts, ("dy", "x", "dt", "z"), "BC"), **plan.scalars},
        constants={
            "N": spec.N,
            "BLOCK_D": channels,
            "KEEP": spec.chunk,
            "PIECE": spans.PIECE,
            "MIDDLE": spec.N <= 32,  # more states and longer chunks leave no shared memory for it
            "SPLIT": spec.x.dtype == FP32 or spec.B.dtype == FP32 or spec.C.dtype == FP32,
            "WARPS": BACKWARD_WARPS,
            "MAKE_REGISTERS": MAKE_REGISTERS_64 if spec.N == 64 else MAKE_REGISTERS,
            "FINISH_REGISTERS": FINISH_REGISTERS,
        },
        num_warps=BACKWARD_WARPS,
        max_registers=REGISTERS,
    )
    ahead = (_walk(spec, arrays, layouts, arch, plan, back=True),)
    launches = (*(ahead if plan.count > 1 else ()), scan, *unfinished.launches(arch))
    return Program(inputs, outputs, scratch, launches)


def _between(spec: Spec, name: str, plan: Spans) -> Array:
    """A state for each boundary of two spans: the one that enters the later span, or the gradient of the one that
    leaves the earlier span."""
    return Array(name, (spec.sequences, plan.count - 1, spec.channels, spec.N), FP32)


def _walk(
    spec: Spec,
    arrays: tuple[Array, ...],
    layouts: Layouts,
    arch: Arch,
    plan: Spans,
    *,
    back: bool,
) -> Launch:
    """The walk that computes the states, or gradients, that enter the spans."""
    ahead, after = ("x", "B", "initial_state", "entering"), ("dy", "C", "dfinal_state", "leaving")
    drive, vector, start, out = after if back else ahead
    pointers = pointers_to(
        arrays,
        drive_ptr=drive,
        dt_ptr="dt",
        A_ptr="A",
        vector_ptr=vector,
        z_ptr="z" if back else None,
        dt_bias_ptr="dt_bias",
        start_ptr=start,
        cu_seqlens_ptr="cu_seqlens",
        out_ptr=out,
    )
    geometry = _geometry(spec, layouts, (drive, "dt", "z"), vector)
    warps = WALK_CHANNELS * spec.N // (32 * WALK_STATES)
    return Launch(
        walk,
        grid=spec.sequences * (spec.channels // WALK_CHANNELS),
        arrays=pointers,
        scalars={
            **{name: geometry[name] for name in ("T", "channels", "dt_strides", "z_strides")},
            "channels_a_vector": geometry[f"channels_a_{vector}"],
            "drive_strides": geometry[f"{drive}_strides"],
            "vector_strides": geometry[f"{vector}_strides"],
            **plan.scalars,
        },
        constants={
            "N": spec.N,
            "BLOCK_D": WALK_CHANNELS,
            "STATES": WALK_STATES,
            "KEEP": spec.chunk,
            "STEPS": min(WALK_STEPS, spec.chunk),
            "STAGES": WALK_STAGES,
            "BACK": back,
            "WARPS": warps,
            "OVERLAP": arch.overlaps_launches,
        },
        num_warps=warps,
        overlap=arch.overlaps_launches,
    )


def _geometry(spec: Spec, layouts: Layouts, rows: tuple[str, ...], matrices: str) -> dict[str, int | tuple[int, ...]]:
    params = spec.params((*spec.arguments, "dy"))
    strides = {name: strides_of(name, param.shape, layouts) for name, param in params.items()}
    unit = 16 // BYTES[spec.x.dtype]
    scalars: dict[str, int | tuple[int, ...]] = {
        "T": spec.time,
        "sequences": spec.sequences,
        "channels": spec.channels,
    }
    for name in rows:
        own = strides.get(name, (0, 0, 0))
        scalars[f"{name}_strides"] = (own[0] // unit, own[1] // unit)
    for name in matrices:
        scalars[f"channels_a_{name}"] = spec.channels // spec.groups(name)
        own = strides[name]
        own = own if len(own) == 4 else (*own[:2], 0, own[2])
        scalars[f"{name}_strides"] = (own[0] // 4, own[1] // 4, own[2] // 4)
    return scalars
