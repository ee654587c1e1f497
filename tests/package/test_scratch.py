"""Where a call's scratch arrays are."""

from __future__ import annotations

import pytest

from retrograd.core.program import Array
from retrograd.core.torch.launch import BLOCK_ALIGNMENT, blocks_of

SCRATCH = (
    Array("base", (3, 5), "float32"),
    Array("turns", (7,), "int32", zeroed=True),
    Array("empty", (0, 4), "float32"),
    Array("dq_sum", (2, 1000), "float32"),
    Array("counter", (1,), "int32", zeroed=True),
)


@pytest.fixture(autouse=True)
def caching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)


def test_those_to_fill_with_zeros_are_one_allocation_and_all_others_are_one() -> None:
    assert [(tuple(block.offsets), block.zeroed) for block in blocks_of(SCRATCH)] == [
        (("base", "empty", "dq_sum"), False),
        (("turns", "counter"), True),
    ]
    assert blocks_of(()) == []


def test_arrays_of_a_block_are_aligned_and_do_not_overlap() -> None:
    arrays = {array.name: array for array in SCRATCH}
    for block in blocks_of(SCRATCH):
        end = 0
        for name, offset in block.offsets.items():
            assert offset % BLOCK_ALIGNMENT == 0
            assert offset >= end
            end = offset + arrays[name].nbytes
        assert end <= block.nbytes


def test_a_sanitizer_sees_each_array_as_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    assert [tuple(block.offsets) for block in blocks_of(SCRATCH)] == [(array.name,) for array in SCRATCH]
