"""The launch of a step of the plain recurrence."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton import next_power_of_2

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense, row_of
from retrograd.core.spec import Param, Pass

from ...op import SMALLEST, factor_of
from ...steps import UpdateInPlace
from .kernel import update

STATES = 4096  # of a program: 32 for each thread
ROWS = ("q", "k", "v", "g", "beta")


class Call(NamedTuple):
    """Heads, key heads, and the scale of the results: on these no binary depends."""

    H: Any
    G: Any
    scale: Any


class Sizes(NamedTuple):
    """Channels of a key and of a value; channels of values of a program; the next power of two of K; the decays' form.

    Attributes:
        OF_CHANNELS: whether each channel of K has a decay of its own.
    """

    K: int
    V: int
    BLOCK_V: int
    BLOCK_K: int
    OF_CHANNELS: bool


def suits(spec: UpdateInPlace, arch: Arch, which: Pass) -> bool:
    """Whether the kernel takes a call: it computes in float32."""
    return which == "fwd" and spec.compute_dtype == "float32" and 0 not in spec.state.shape


def planned(spec: UpdateInPlace, arch: Arch, which: Pass) -> None:
    """There is nothing to plan."""


def forward(
    spec: UpdateInPlace, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: None
) -> Program:
    """The arguments -> o; the state is overwritten."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    batch, heads, V, K = spec.state.shape
    keys = next_power_of_2(K)
    block = min(next_power_of_2(V), STATES // keys)
    others = {name: name for name in ROWS}
    arrays = pointers_to((*inputs, *outputs), "state", out_ptr="o", **others)
    launch = Launch(
        update,
        grid=batch * heads * -(-V // block),
        arrays={name: arrays[name] for name in update.arg_names if name in arrays},
        strided={name: row_of(name, spec[name], layouts) for name in ROWS},
        scalars={"call": Call(heads, spec.q.shape[1], factor_of(spec.scale, K))},
        constants={
            "SIZES": Sizes(K, V, block, keys, spec.of_channels),
            "SMALLEST": SMALLEST,
            "OVERLAP": arch.overlaps_launches,
        },
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernel reads an array without a copy. A state is always dense: what is written shall stay."""
    if name in ROWS:
        return len(param.shape) == 2 or layout.strides[2] == 1
    return is_dense(param.shape, layout.strides)
