"""rms_norm sums a row in one order for every layout: read from the binaries, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from checks.layouts import LAYOUTS
from checks.resources import reductions

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Layout, Program
from retrograd.core.spec import Param
from retrograd.core.torch.launch import DTYPES, key, layouts
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.rms_norm.info import INFO
from retrograd.ops.rms_norm.op import OP

ARCH = SUPPORTED["sm_90"]
COPIED = {"transposed", "channels_first", "every_third_column", "broadcast_columns", "broadcast"}


def programs(case: Case, layout: str | None) -> Iterator[Program]:
    """The programs of both passes, with every array of the user in this layout."""
    spec = spec_of(OP, case)
    params = {name: Param(tensor.shape, tensor.dtype) for name, tensor in case.inputs.items()}
    params |= spec.params(("dy", "dsum"))
    tensors = {name: torch.zeros(param.shape, dtype=DTYPES[param.dtype]) for name, param in params.items()}
    strided = layouts(list(params), [key(LAYOUTS[layout](tensor)) for tensor in tensors.values()]) if layout else {}
    for call in (OP.forward(spec), OP.backward(spec, frozenset(OP.arguments))):
        program = call.program(strided, ARCH)
        assert program is not None
        yield program


def sums(case: Case, layout: str | None) -> list[list[str]]:
    return [
        reductions(build(launch, program.arrays, ARCH))
        for program in programs(case, layout)
        for launch in program.launches
        if launch.kernel.__name__ != "sum_rows"
    ]


@pytest.mark.compile
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    ["plain", "odd_columns"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("everything", "qk_norm_bias", "looped", "widest", "gpu_ring")
    ],
)
def test_a_row_is_added_up_in_the_same_order(name: str, layout: str) -> None:
    assert sums(INFO.case(name), layout) == sums(INFO.case(name), None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_dense_columns_are_read_where_they_lie(layout: str) -> None:
    copied = {
        array.name for program in programs(INFO.case("gpu_4096"), layout) for array in program.inputs if array.copied
    }
    expected = {"x", "dy"} if layout in COPIED else set()
    assert copied - {"weight", "rstd"} == expected


def test_rows_that_overlap_are_copied() -> None:
    spec = OP.spec({name: Param((5, 64), "float32") if name == "x" else None for name in OP.arguments}, {})
    program = OP.forward(spec).program({"x": Layout((1, 1))}, ARCH)
    assert program is not None
    assert [array.copied for array in program.inputs] == [True]


@pytest.mark.parametrize("aligned", [True, False])
def test_a_long_row_is_read_from_a_16_byte_boundary(aligned: bool) -> None:
    spec = OP.spec({name: Param((20_000,), "float32") if name == "x" else None for name in OP.arguments}, {})
    program = OP.forward(spec).program({"x": Layout((1,), aligned)}, ARCH)
    assert program is not None
    assert [array.copied for array in program.inputs] == [not aligned]
