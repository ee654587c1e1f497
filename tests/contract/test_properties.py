"""Properties of stride collapsing, binaries and error budgets, over values drawn by hypothesis."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

import numpy as np
import torch
from checks import programs
from checks.parts import batch_size, is_packed
from hypothesis import given, settings
from hypothesis import strategies as st

from retrograd.core.arch import SUPPORTED
from retrograd.core.program import dense
from retrograd.core.rows import collapse
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos
from retrograd.testing.budget import judge, measure, rounding

settings.register_profile("retrograd", deadline=None, database=None)
settings.load_profile("retrograd")

CASES = [
    pytest.param(info, case, id=f"{info.name}-{case.name}")
    for info in infos()
    for case in info.tagged("test")
    if batch_size(info, case) or is_packed(case)
]
SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def strided(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A shape, and the strides of a few sliced, transposed or broadcast arrays of that shape."""
    shape = draw(SHAPES)
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(len(shape))))
        grown = [shape[axis] + draw(st.integers(0, 2)) for axis in order]
        in_memory = dict(zip(order, dense(grown), strict=True))
        step = draw(st.integers(1, 3))
        arrays.append(tuple(draw(st.sampled_from((0, step))) * in_memory[axis] for axis in range(len(shape))))
    return shape, arrays


@given(strided())
def test_collapsed_strides_reach_every_row_in_the_same_order(
    given_arrays: tuple[tuple[int, ...], list[tuple[int, ...]]],
) -> None:
    shape, strides = given_arrays
    merged, kept = collapse(shape, strides)
    for before, after in zip(strides, kept, strict=True):
        assert offsets(merged, after) == offsets(shape, before)


def offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """The offsets of the elements in row-major order, as numpy indexes them."""
    size = 1 + sum((dim - 1) * stride for dim, stride in zip(shape, strides, strict=True))
    memory = np.arange(max(size, 1))
    view = np.lib.stride_tricks.as_strided(memory, shape, [stride * memory.itemsize for stride in strides])
    return [int(offset) for offset in view.reshape(-1)]


@given(SHAPES)
def test_dense_arrays_collapse_to_one_stride(shape: tuple[int, ...]) -> None:
    merged, (strides,) = collapse(shape, [dense(shape)])
    assert len(merged) == len(strides) == 1
    assert merged[0] == int(np.prod(shape))


@pytest.mark.parametrize(("info", "case"), CASES)
@settings(max_examples=5)  # of every case; test_programs.py has chosen numbers on every architecture
@given(rows=st.integers(1, 2**20), others=st.integers(1, 2**20), arch=st.sampled_from(sorted(SUPPORTED)))
def test_the_number_of_rows_does_not_decide_the_binary(
    info: OpInfo, case: Case, rows: int, others: int, arch: str
) -> None:
    programs.check_same_binaries(info, case, SUPPORTED[arch], rows, others)


@given(
    st.floats(-1e4, 1e4).filter(lambda x: abs(x) > 1e-4),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_the_budget_has_room_for_rounding_to_nearest_and_no_more(value: float, dtype: torch.dtype) -> None:
    exact = torch.tensor([value], dtype=torch.float64)
    rounded = exact.to(dtype)
    assert abs(rounded.double() - exact) <= rounding(exact, dtype)
    # A correctly rounded result always passes if the plain computation is exact.
    assert within(rounded, exact)
    # A result that is two units in the last place off never passes.
    spacing = 2 * torch.finfo(dtype).eps * abs(value)
    assert not within((exact + 2 * spacing).to(dtype), exact)


def within(result: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is within budget if the plain computation is exact."""
    verdict = judge([measure(result, exact, exact)])
    return verdict.error <= verdict.budget
