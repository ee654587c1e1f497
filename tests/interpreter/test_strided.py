"""Named tuples of a pointer and strides in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from strided_kernels import COLUMNS, ROWS, program, side_by_side, together

from retrograd.core.torch.launch import interpret


@pytest.mark.parametrize("both", [True, False])
def test_arrays_are_read_by_their_strides(both: bool) -> None:
    a, b = torch.randn(2 * ROWS, COLUMNS)[::2], torch.randn(COLUMNS, ROWS).T
    (out,) = interpret(program((2 * COLUMNS, 1), (1, ROWS) if both else None), [a, b] if both else [a])
    assert torch.equal(out, a + b if both else a)


@pytest.mark.parametrize("both", [True, False])
def test_several_arrays_are_one_tuple(both: bool) -> None:
    a, b = torch.randn(2, ROWS, COLUMNS)
    (out,) = interpret(together(program((COLUMNS, 1), (COLUMNS, 1) if both else None)), [a, b] if both else [a])
    assert torch.equal(out, a + b if both else a)


def test_outputs_are_written_to_their_places_in_a_larger_array() -> None:
    a, b = torch.randn(2, ROWS, COLUMNS)
    (both,) = interpret(side_by_side(), [a, b])
    assert torch.equal(both, torch.stack([a + b, a], 1))
