"""The launches of this folder's kernels, and the calls that they take."""

from __future__ import annotations

from retrograd.core.arch import KIB, Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.kernels.reduce import sum_rows_launch
from retrograd.core.program import Array, Launch, Layouts, Program, arrays_of, pointers_to
from retrograd.core.spec import Param, Pass

from ..op import Spec
from ..passes import backward_pointers, in_one_piece, inputs_of
from . import plan
from .backward import backward_ring
from .forward import forward_ring
from .plan import Ring


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the rows are long and have two-byte elements."""
    two_bytes = BYTES[spec.x.dtype] == BYTES[spec.y_dtype] == 2
    large_shared = arch.backend == "cuda" and arch.shared_memory >= 227 * KIB
    one_weight = spec.weight is not None and spec.heads == 1
    return two_bytes and one_weight and large_shared and spec.N % 8 == 0 and plan.SHORTEST < spec.N <= plan.LONGEST


def planned(spec: Spec, arch: Arch, which: Pass) -> Ring:
    """The ring of a pass."""
    return (plan.forward if which == "fwd" else plan.backward)(spec, arch)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, ring: Ring
) -> Program:
    """x, weight -> y, rstd."""
    inputs, _ = inputs_of(spec, names, layouts, in_one_piece)
    launch = Launch(
        forward_ring,
        grid=min(ring.programs, spec.rows),
        arrays=pointers_to(inputs + outputs, "x weight y rstd"),
        scalars={"rows": spec.rows},
        constants={"N": spec.N, "RING": ring.stages, "OVERLAP": arch.overlaps_launches},
        num_warps=ring.num_warps,
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, ring: Ring
) -> Program:
    """dy, x, weight, rstd -> dx and, if wanted, dweight."""
    inputs, _ = inputs_of(spec, names, layouts, in_one_piece)
    programs = min(ring.programs, spec.rows)
    parameters = any(array.name == "dweight" for array in outputs)
    scratch = arrays_of({}, dweight_partial=Param((programs, spec.N), "float32") if parameters else None)
    launch = Launch(
        backward_ring,
        grid=programs,
        arrays=backward_pointers(spec, inputs + outputs + scratch, "dy s weight rstd dx dweight_partial"),
        scalars={"rows": spec.rows},
        constants={
            "N": spec.N,
            "BLOCK_N": ring.chunk,
            "STAGES": ring.stages,
            "SHARED": ring.shared,
            "OVERLAP": arch.overlaps_launches,
        },
        num_warps=ring.num_warps,
        overlap=arch.overlaps_launches,
    )
    second = (sum_rows_launch("dweight_partial", "dweight", programs, spec.N, arch),) if parameters else ()
    return Program(inputs, outputs, scratch, (launch, *second))
