"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.build import ALIGNMENT, divisor
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.kernels.reduce import sum_rows_launch
from retrograd.core.program import (
    Array,
    Launch,
    Layout,
    Layouts,
    Program,
    Scalar,
    Strides,
    arrays_of,
    pointers_to,
    strides_of,
)
from retrograd.core.rows import collapse
from retrograd.core.spec import Param, Pass

from ..op import Spec
from ..passes import backward_pointers, inputs_of
from . import backward as backward_kernels
from . import forward as forward_kernels
from .arrays import Gates, Parameter, Sizes, rows_type
from .plan import Plan, Tile, planned

__all__ = ["backward", "forward", "planned", "suits"]


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtypes."""
    return spec.x.dtype in KERNEL_FLOATS


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> y, sum, rstd."""
    whole, tile = plan.whole, plan.tile
    inputs, layouts = inputs_of(spec, names, layouts, _in_rows if whole else _in_aligned_rows)
    pointers = pointers_to(inputs + outputs, "x residual gate weight bias y sum rstd")
    launch = Launch(
        forward_kernels.forward_whole if whole else forward_kernels.forward_looped,
        grid=spec.heads * -(-spec.rows // tile.rows),
        **_geometry(spec, layouts, inputs, pointers, "x residual gate weight bias"),
        constants={**_flags(spec, arch), **_sizes(spec, tile)},
        num_warps=tile.num_warps,
        overlap=arch.overlaps_launches,
    )
    return Program(inputs, outputs, (), (launch,))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The gradients of the results, the normalised array, the parameters, rstd -> the wanted gradients."""
    whole, tile = plan.whole, plan.tile
    inputs, layouts = inputs_of(spec, names, layouts, _in_rows if whole else _in_aligned_rows)
    programs = tile.programs_for(spec.rows)
    partial = Param((programs, spec.heads, spec.N), "float32")
    in_two_stages = [a.name for a in outputs if a.name in ("dweight", "dbias") and _in_two_stages(a, programs)]
    partials = {name: f"{name}_partial" for name in in_two_stages}
    scratch = arrays_of({}, **dict.fromkeys(partials.values(), partial), c=None if whole else spec["rstd"])
    arrays = inputs + outputs + scratch
    pointers = {
        **backward_pointers(spec, arrays, "dy dsum s gate weight bias rstd" + ("" if whole else " c")),
        **pointers_to(arrays, "dx dresidual dgate"),
        **pointers_to(arrays, **{f"{name}_partial_ptr": partials.get(name, name) for name in ("dweight", "dbias")}),
    }
    launches = []
    if plan.means is not None:
        means = backward_pointers(spec, arrays, "dy s gate weight rstd c")
        launches.append(
            Launch(
                backward_kernels.backward_row_means,
                grid=spec.rows * spec.heads,
                **_geometry(spec, layouts, inputs, means, "dy s gate weight"),
                constants={**_flags(spec, arch), **_sizes(spec, plan.means)},
                num_warps=plan.means.num_warps,
                overlap=arch.overlaps_launches,
            )
        )
    launches.append(
        Launch(
            backward_kernels.backward_whole if whole else backward_kernels.backward_columns,
            grid=programs * spec.heads * (1 if whole else -(-spec.N // tile.columns)),
            **_geometry(spec, layouts, inputs, pointers, "dy dsum s gate weight bias"),
            constants={**_flags(spec, arch), **_sizes(spec, tile), **({"AGAIN": plan.again} if whole else {})},
            num_warps=tile.num_warps,
            allowed_spills=2 if whole and spec.sigmoid else 0,  # at 128 columns one number lies in memory over the loop
            overlap=arch.overlaps_launches,
        )
    )
    for name, partial_sums in partials.items():
        launches.append(sum_rows_launch(partial_sums, name, programs, spec.heads * spec.N, arch))
    return Program(inputs, outputs, scratch, tuple(launches))


def _in_two_stages(gradient: Array, programs: int) -> bool:
    """Whether the gradient of a parameter is summed in two stages.

    With one program per head, that program has the whole sum and writes the gradient itself if it is float32. Other
    dtypes keep the partial sums, so that a small batch runs the same binary.
    """
    return programs != 1 or gradient.dtype != "float32"


# The compiler assigns the columns of a tile to threads by the strides and the alignment of the arrays, and the order of
# the additions follows from it. A row must have the same bits in every layout, so these functions accept only the
# layouts that leave that order as it is for dense arrays.


def _in_rows(shape: tuple[int, ...], layout: Layout) -> bool:
    """For rows held whole: dense columns in rows that neither overlap nor are better aligned than dense ones.

    Less aligned rows are read in the thread layout of the results, which are dense.
    """
    N = shape[-1]
    if N == 1:
        return True
    if len(shape) == 1:
        return layout.strides == (1,) and (layout.aligned or divisor(N) == ALIGNMENT)
    rows = _row_strides(shape, layout)
    return layout.strides[-1] == 1 and 1 not in rows and min(map(divisor, rows)) <= divisor(N)


def _in_aligned_rows(shape: tuple[int, ...], layout: Layout) -> bool:
    """For longer rows, which must be aligned like dense ones: a kernel may write only their mean, no dense result."""
    if not _in_rows(shape, layout):
        return False
    if len(shape) == 1:
        return layout.aligned
    known = divisor(shape[-1])
    return known == 1 or (layout.aligned and min(map(divisor, _row_strides(shape, layout))) == known)


def _row_strides(shape: tuple[int, ...], layout: Layout) -> Sequence[int]:
    """The strides between rows, per dimension; for a single row, the stride of the row dimension."""
    rows = [stride for size, stride in zip(shape[:-1], layout.strides, strict=False) if size != 1]
    return rows or [layout.strides[-2]]


def _flags(spec: Spec, arch: Arch) -> dict[str, Any]:
    return {"GATES": Gates(spec.gate_first, spec.gate_last, spec.sigmoid), "OVERLAP": arch.overlaps_launches}


def _sizes(spec: Spec, tile: Tile) -> dict[str, Sizes]:
    return {"SIZES": Sizes(spec.N, tile.columns, tile.rows, tile.stages)}


def _geometry(
    spec: Spec, layouts: Layouts, inputs: tuple[Array, ...], pointers: dict[str, str | None], names: str
) -> dict[str, Any]:
    """`arrays`, `strided` and `scalars` of a launch that reads the arrays `names` by their strides.

    In the backward kernels the normalised array is named s.
    """
    strides = {a.name: strides_of(a.name, a.shape, layouts) for a in inputs}
    tiled = [name for name, s in strides.items() if name not in ("weight", "bias", "rstd")]
    # A single row, of any rank, has the stride that it would have among several: alignment hints depend on it.
    lead = spec.lead or (1,)
    dims, row_strides = collapse(lead, [strides[name][: len(spec.lead)] or (spec.width,) for name in tiled])
    rows = dict(zip(tiled, row_strides, strict=True))
    Rows = rows_type(len(dims) - 1)
    strided: dict[str, Any] = {}
    for name in names.split():
        array = spec.normalised if name == "s" else name
        head = _head(spec, strides[array]) if array in strides else 0
        if name in ("weight", "bias"):
            strided[name] = Parameter(None, head)
        else:
            strided[name] = Rows(None, *(rows[array][::-1] if array in rows else (0,) * len(dims)), head)
    arrays = {name if (name := key.removesuffix("_ptr")) in strided else key: array for key, array in pointers.items()}
    scalars: dict[str, Scalar | None] = {"inner_dims": dims[:0:-1], "rows": spec.rows, "heads": spec.heads}
    return {"arrays": arrays, "strided": strided, "scalars": scalars}


def _head(spec: Spec, strides: Strides) -> int:
    """The stride between the heads or groups of a row."""
    if spec.per_head:
        return strides[-2]
    return spec.N if spec.heads > 1 else 0
