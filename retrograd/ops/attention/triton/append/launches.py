"""The launch of `step.Append`."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton import next_power_of_2

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense, row_of
from retrograd.core.spec import Param, Pass

from ...step import Append
from .kernel import append


class Heads(NamedTuple):
    """Heads of queries, and of keys and values."""

    H: Any
    G: Any


class Sizes(NamedTuple):
    """Columns of a head of queries and keys, and of values; pairs that are rotated; the next powers of two."""

    D: int
    V: int
    R: int
    BLOCK: int
    BLOCK_V: int


def suits(spec: Append, arch: Arch, which: Pass) -> bool:
    """Whether the kernel takes a call: it computes in float32, and counts slots in 32 bits."""
    return which == "fwd" and spec.q.dtype != "float64" and 0 < spec.batch * spec.capacity < 2**31


def planned(spec: Append, arch: Arch, which: Pass) -> None:
    """There is nothing to plan."""


def forward(
    spec: Append, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: None
) -> Program:
    """The arguments -> queries, steps and boundaries; the caches are overwritten."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    arrays = pointers_to(
        (*inputs, *outputs), "steps cos sin cache_k cache_v rotated after bounds_q bounds_k", q="q", k="k", v="v"
    )
    launch = Launch(
        append,
        grid=spec.batch * (spec.heads + spec.groups),
        arrays={name: arrays[name] for name in append.arg_names if name in arrays},
        strided={name: row_of(name, spec[name], layouts) for name in "qkv"},
        scalars={"batch": spec.batch, "capacity": spec.capacity, "heads": Heads(spec.heads, spec.groups)},
        constants={
            "SIZES": Sizes(
                spec.head_size,
                spec.value_size,
                spec.pairs,
                next_power_of_2(spec.head_size),
                next_power_of_2(spec.value_size),
            ),
            "OVERLAP": arch.overlaps_launches,
        },
        num_warps=1,
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernel reads an array without a copy. Caches are always dense: what is written shall stay."""
    return layout.strides[2] == 1 if name in ("q", "k", "v") else is_dense(param.shape, layout.strides)
