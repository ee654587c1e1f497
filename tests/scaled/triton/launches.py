from __future__ import annotations

from math import prod
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Launch, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense
from retrograd.core.spec import Pass

from . import kernels

BLOCK = 64


def suits(spec: Any, arch: Arch, which: Pass) -> bool:
    return True


def planned(spec: Any, arch: Arch, which: Pass) -> int:
    return BLOCK


def forward(
    spec: Any, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, block: int
) -> Program:
    size = prod(spec.x.shape)
    programs = -(-size // block)
    counts = Array("counts", (programs,), "int32", zeroed=True)
    inputs, _ = read_in_place(spec.params(names), layouts, lambda _, p, layout: is_dense(p.shape, layout.strides))
    count = Launch(kernels.count, programs, pointers_to((*inputs, counts), "x counts"))
    return Program(inputs, outputs, (counts,), (count, scaled((*inputs, counts, *outputs), size, block)))


def backward(
    spec: Any, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, block: int
) -> Program:
    inputs, _ = read_in_place(spec.params(names), layouts, lambda _, p, layout: is_dense(p.shape, layout.strides))
    launch = scaled((*inputs, *outputs), prod(spec.x.shape), block, x_ptr="dy", y_ptr="dx")
    return Program(inputs, outputs, (), (launch,))


def scaled(arrays: tuple[Array, ...], size: int, block: int, x_ptr: str = "x", y_ptr: str = "y") -> Launch:
    return Launch(
        kernels.scaled,
        -(-size // block),
        pointers_to(arrays, x_ptr=x_ptr, scale_ptr="scale", seed_ptr="seed", counts_ptr="counts", y_ptr=y_ptr),
        scalars={"size": size},
        constants={"BLOCK": block},
    )
