"""The launches of this folder's kernels, and the calls that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
    fields_of,
    read_in_place,
    strides_of,
)
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param, Pass, slot_count

from ..op import Spec
from ..passes import FP32, Unfinished
from . import plan as plans
from .arrays import (
    BackwardSizes,
    Channels,
    ForwardSizes,
    Gradients,
    Lengths,
    Matrix,
    Rows,
    StatePointers,
    WalkChannels,
    WalkSizes,
)
from .backward import backward_scan
from .forward import forward_scan
from .plan import PIECE, Spans
from .walk import walk

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
    return (plans.forward if which == "fwd" else plans.backward)(spec, channels_of(spec, which))


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
    scan = _launch(forward_scan, spec, arrays, layouts, plan)
    scan = replace(
        scan,
        constants={"SIZES": ForwardSizes(spec.N, FORWARD_CHANNELS, states, spec.chunk, STAGES, warps)},
        num_warps=warps,
    )
    ahead = (_walk(spec, arrays, layouts, plan, back=False),)
    return Program(inputs, outputs, scratch, (*(ahead if plan.count > 1 else ()), scan))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Spans
) -> Program:
    """The gradients of the results, the arguments, states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    channels = channels_of(spec, "bwd")
    unfinished = Unfinished(spec, outputs, spec.channels // channels, spec.batch * slot_count(spec, PIECE))
    scratch = (_between(spec, "leaving", plan), *unfinished.scratch)
    arrays = inputs + outputs + scratch
    sizes = BackwardSizes(
        N=spec.N,
        channels=channels,
        chunk=spec.chunk,
        piece=PIECE,
        every=every_of(spec.N),
        extra=1 if spec.N == 64 else 2,
        split=FP32 in (spec.x.dtype, spec.B.dtype, spec.C.dtype),
        warps=BACKWARD_WARPS,
        make_registers=MAKE_REGISTERS_64 if spec.N == 64 else MAKE_REGISTERS,
        finish_registers=FINISH_REGISTERS,
    )
    scan = _launch(backward_scan, spec, arrays, layouts, plan, pointers=StatePointers, gradients=Gradients)
    scan = replace(scan, constants={"SIZES": sizes}, num_warps=BACKWARD_WARPS, max_registers=REGISTERS)
    ahead = (_walk(spec, arrays, layouts, plan, back=True),)
    launches = (*(ahead if plan.count > 1 else ()), scan, *unfinished.launches(arch))
    return Program(inputs, outputs, scratch, launches)


def every_of(N: int) -> int:
    """Steps between states that are kept in shared memory; more states and longer chunks leave none for as many."""
    return {8: 2, 16: 2, 32: 4, 64: 8}[N]


def _between(spec: Spec, name: str, plan: Spans) -> Array:
    """A state for each boundary of two spans: the one that enters the later span, or the gradient of the one that
    leaves the earlier span."""
    return Array(name, (spec.sequences, plan.count - 1, spec.channels, spec.N), FP32)


def _walk(
    spec: Spec,
    arrays: tuple[Array, ...],
    layouts: Layouts,
    plan: Spans,
    *,
    back: bool,
) -> Launch:
    """The walk that computes the states, or gradients, that enter the spans."""
    names = {"drive": "x", "vector": "B", "z": None, "start_ptr": "initial_state", "out_ptr": "entering"}
    if back:
        names = {"drive": "dy", "vector": "C", "start_ptr": "dfinal_state", "out_ptr": "leaving"}
    warps = WALK_CHANNELS * spec.N // (32 * WALK_STATES)
    steps = min(WALK_STEPS, spec.chunk)
    launch = _launch(walk, spec, arrays, layouts, plan, names)
    return replace(
        launch,
        grid=spec.sequences * (spec.channels // WALK_CHANNELS),
        scalars={
            **launch.scalars,
            "channels": WalkChannels(spec.channels, spec.channels // spec.groups("C" if back else "B")),
        },
        constants={
            "SIZES": WalkSizes(spec.N, WALK_CHANNELS, WALK_STATES, spec.chunk, steps, WALK_STAGES, warps),
            "BACK": back,
        },
        num_warps=warps,
    )


def _launch(
    kernel: Any,
    spec: Spec,
    arrays: tuple[Array, ...],
    layouts: Layouts,
    plan: Spans,
    names: Mapping[str, str | None] | None = None,
    **together: Any,
) -> Launch:
    """A launch without its constants; `names`: parameter -> array, where the names differ."""
    parameters = fields_of(kernel.arg_names[: kernel.arg_names.index("lengths")], together)
    present = {array.name for array in arrays}
    named = {name: name.removesuffix("_ptr") for name in parameters} | dict(names or {})
    of_B, of_C = (spec.channels // spec.groups(name) for name in ("B", "C"))
    return Launch(
        kernel,
        grid=plan.programs * plan.count,
        arrays={name: array if array in present else None for name, array in named.items()},
        strided={name: _strided(named[name], spec, layouts) for name in parameters if not name.endswith("_ptr")},
        together=together,
        scalars={
            "lengths": Lengths(spec.time, spec.sequences, plan.chunks, plan.count),
            "channels": Channels(spec.channels, of_B, of_C),
        },
    )


def _strided(name: str | None, spec: Spec, layouts: Layouts) -> Rows | Matrix:
    """An array's strides as the kernels take them."""
    param = spec[name] if name else None
    if name is None or param is None:
        return Rows(None, 0, 0)
    own = strides_of(name, param.shape, layouts)
    if name in ROWS:
        unit = 16 // BYTES[spec.x.dtype]
        return Rows(None, own[0] // unit, own[1] // unit)
    return Matrix(None, own[0] // 4, own[1] // 4, own[2] // 4 if len(own) == 4 else 0)
