"""The launch of a step of generation."""

from __future__ import annotations

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layouts, Program, arrays_of, pointers_to, strides_of
from retrograd.core.spec import Pass
from retrograd.core.tiles import warps_of

from ...update import StepInPlace
from .. import launches as sequence
from ..arrays import Line, Rows, Weight
from .kernel import update

CHANNELS = 128  # of a program, one for each thread


def suits(spec: StepInPlace, arch: Arch, which: Pass) -> bool:
    """Whether the kernel takes a call: a single step, whose bits on a sequence are those of kernels, too."""
    single = len(spec.x.shape) == 2 and 0 not in spec.x.shape
    return which == "fwd" and single and sequence.suits(spec, arch, which)


def planned(spec: StepInPlace, arch: Arch, which: Pass) -> None:
    """There is nothing to plan."""


def forward(
    spec: StepInPlace, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: None
) -> Program:
    """The arguments -> y; the state is overwritten."""
    inputs = arrays_of(layouts, **spec.params(names))
    row, channel = strides_of("x", spec.x.shape, layouts)
    bias = (0,) if spec.bias is None else strides_of("bias", spec.bias.shape, layouts)
    launch = Launch(
        update,
        grid=spec.batch * -(-spec.channels // CHANNELS),
        arrays=pointers_to((*inputs, *outputs), x="x", weight="weight", bias="bias", state_ptr="state", y_ptr="y"),
        strided={
            "x": Rows(None, row, 0, channel),
            "weight": Weight(None, *strides_of("weight", spec.weight.shape, layouts)),
            "bias": Line(None, *bias),
        },
        constants={
            **sequence.constants_of(spec, arch),
            "ACTIVATION": sequence.activation_of(spec, arch),
            "BLOCK_D": CHANNELS,
        },
        num_warps=warps_of(CHANNELS // 32, arch),
        thread_wise=True,
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))
