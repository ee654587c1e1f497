"""The launch of a step of the plain recurrence."""

from __future__ import annotations

from typing import NamedTuple

from triton import next_power_of_2

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense, row_of
from retrograd.core.spec import Param, Pass

from ...arrays import Groups, Skip
from ...op import in_range
from ...steps import UpdateInPlace
from .kernel import update

STATES = 4096  # of a program: 32 for each thread
ROWS = ("x", "dt", "B", "C", "z")


class Sizes(NamedTuple):
    """Channels of a head and states; channels of a program; the next power of two of states."""

    P: int
    N: int
    BLOCK_P: int
    BLOCK_N: int


class Limits(NamedTuple):
    """Of delta."""

    low: float
    high: float


def suits(spec: UpdateInPlace, arch: Arch, which: Pass) -> bool:
    """Whether the kernel takes a call: it computes in float32."""
    return which == "fwd" and spec.compute_dtype == "float32" and 0 not in spec.state.shape


def planned(spec: UpdateInPlace, arch: Arch, which: Pass) -> None:
    """There is nothing to plan."""


def forward(
    spec: UpdateInPlace, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: None
) -> Program:
    """The arguments -> y; the state is overwritten."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    batch, heads, P, N = spec.state.shape
    states = next_power_of_2(N)
    block = min(next_power_of_2(P), STATES // states)
    others = {name: name for name in (*ROWS, "D")}
    arrays = pointers_to((*inputs, *outputs), "A dt_bias state", out_ptr="y", **others)
    wide = spec.D is not None and len(spec.D.shape) == 2

    launch = Launch(
        update,
        grid=batch * heads * -(-P // block),
        arrays={name: arrays[name] for name in update.arg_names if name in arrays},
        strided={name: row_of(name, spec[name], layouts) for name in ROWS}
        | {"D": Skip(None, P if wide else 1, 1 if wide else 0)},
        scalars={"groups": Groups(heads, spec.B.shape[1]), "limits": Limits(*in_range(spec.dt_limit, "float32"))},
        constants={"SIZES": Sizes(P, N, block, states), "OVERLAP": arch.overlaps_launches},
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernel reads an array without a copy. A state is always dense: what is written shall stay."""
    if name in ROWS:
        return name == "dt" or layout.strides[2] == 1
    return is_dense(param.shape, layout.strides)
