"""The launches of this folder's kernels, and the calls that they are for."""

from __future__ import annotations

from retrograd.core.arch import KIB, Arch
from retrograd.core.arrays import pointers_to, strides_of
from retrograd.core.dtypes import BYTES
from retrograd.core.op import Layouts, Param
from retrograd.core.program import Array, Launch
from retrograd.core.rows import Strides, is_dense

from ..spec import Spec
from .backward import backward_scan
from .forward import forward_scan

FORWARD = "x dt A B C D z dt_bias initial_state cu_seqlens y final_state states"
BACKWARD = (
    "dy dfinal_state x dt A B C D z dt_bias cu_seqlens states dx ddt dz dinitial_state"
    " dBC_partial dA_partial dD_partial ddt_bias_partial"
)
ROWS = ("x", "dt", "z", "dy")  # arrays (batch, time, channels)
DENSE = ("A", "D", "dt_bias", "initial_state", "dfinal_state", "states")

FORWARD_CHANNELS = 32
STATES = 8  # a thread
STAGES = 5
# Registers hold the backward pass to 8 warps a multiprocessor; its shared memory is cut for two programs of 4.
BACKWARD_CHANNELS = 64
SMALL_BACKWARD_CHANNELS = 32  # where 64 do not divide the channels, or fp32 takes the shared memory
PARKED = 16  # of 2,500 instructions; pointers and strides, none in the loops over steps
LARGE_SHARED = 227 * KIB  # that of data-centre chips since Hopper; on older ones these kernels were never run


def takes_forward(spec: Spec, arch: Arch, layouts: Layouts) -> bool:
    """Whether the forward kernel is for this call."""
    return spec.N in (8, 16, 32, 64) and _suits(spec, arch, layouts)


def takes_backward(spec: Spec, arch: Arch, layouts: Layouts) -> bool:
    """Whether the backward kernel is for this call."""
    return spec.N in (8, 16) and _suits(spec, arch, layouts)


def _suits(spec: Spec, arch: Arch, layouts: Layouts) -> bool:
    """Whether copies of 16 bytes reach everything, and every program's channels share B and C."""
    if arch.backend != "cuda" or arch.shared_memory < LARGE_SHARED:
        return False
    if spec.complex or spec.constant("B") or spec.constant("C"):
        return False
    if not spec.channels or any(spec.channels // spec.groups(name) % FORWARD_CHANNELS for name in "BC"):
        return False
    params: dict[str, Param] = {**spec.arrays(), "dy": spec.x}
    if any(params[name].dtype != spec.x.dtype for name in ROWS if name in params):
        return False
    for name, param in params.items():
        if (layout := layouts.get(name)) is None:
            continue
        if not layout.aligned:
            return False
        if name in ROWS and not _in_units(layout.strides[:2], layout.strides[2:], 16 // BYTES[param.dtype]):
            return False
        if name in "BC" and not _in_units(layout.strides[:-1], layout.strides[-1:], 4):
            return False
    held = {**spec.arrays(), "dfinal_state": spec.state}
    return all(is_dense(held[name].shape, layouts[name].strides) for name in DENSE if name in layouts and name in held)


def _in_units(outer: Strides, last: Strides, unit: int) -> bool:
    return all(stride == 1 for stride in last) and not any(stride % unit for stride in outer)


def forward_launch(spec: Spec, arrays: tuple[Array, ...], layouts: Layouts) -> Launch:
    """y, final_state and states."""
    warps = _warps(FORWARD_CHANNELS, spec)
    return Launch(
        forward_scan,
        grid=spec.sequences * (spec.channels // FORWARD_CHANNELS),
        arrays=pointers_to(arrays, FORWARD),
        scalars=_geometry(spec, layouts, ("x", "dt", "z")),
        constants={
            "N": spec.N,
            "BLOCK_D": FORWARD_CHANNELS,
            "STATES": STATES,
            "KEEP": spec.chunk,
            "STAGES": STAGES,
            "SOFTPLUS": spec.dt_softplus,
            "WARPS": warps,
        },
        num_warps=warps,
    )


def backward_channels(spec: Spec) -> int:
    """Channels of a backward program."""
    fits = all(spec.channels // spec.groups(name) % BACKWARD_CHANNELS == 0 for name in "BC")
    return BACKWARD_CHANNELS if fits and BYTES[spec.x.dtype] == 2 else SMALL_BACKWARD_CHANNELS


def backward_launch(spec: Spec, arrays: tuple[Array, ...], layouts: Layouts) -> Launch:
    """Gradients, and sums over channels or a sequence."""
    channels = backward_channels(spec)
    warps = _warps(channels, spec)
    return Launch(
        backward_scan,
        grid=spec.sequences * (spec.channels // channels),
        arrays=pointers_to(arrays, BACKWARD),
        scalars=_geometry(spec, layouts, ("dy", "x", "dt", "z")),
        constants={
            "N": spec.N,
            "BLOCK_D": channels,
            "KEEP": spec.chunk,
            "SOFTPLUS": spec.dt_softplus,
            "SPLIT": spec.x.dtype == "float32" or spec.B.dtype == "float32" or spec.C.dtype == "float32",
            "WARPS": warps,
        },
        num_warps=warps,
        parked=PARKED,
    )


def _warps(channels: int, spec: Spec) -> int:
    return channels * spec.N // (32 * STATES)


def _geometry(spec: Spec, layouts: Layouts, rows: tuple[str, ...]) -> dict[str, int | tuple[int, ...]]:
    params: dict[str, Param] = {**spec.arrays(), "dy": spec.x}
    strides = {name: strides_of(name, param.shape, layouts) for name, param in params.items()}
    unit = 16 // BYTES[spec.x.dtype]
    scalars: dict[str, int | tuple[int, ...]] = {
        "T": spec.time,
        "sequences": spec.sequences,
        "channels": spec.channels,
        "channels_a_B": spec.channels // spec.groups("B"),
        "channels_a_C": spec.channels // spec.groups("C"),
    }
    for name in rows:
        own = strides.get(name, (0, 0, 0))
        scalars[f"{name}_strides"] = (own[0] // unit, own[1] // unit)
    for name in "BC":
        own = strides[name]
        own = own if len(own) == 4 else (*own[:2], 0, own[2])
        scalars[f"{name}_strides"] = (own[0] // 4, own[1] // 4, own[2] // 4)
    return scalars
