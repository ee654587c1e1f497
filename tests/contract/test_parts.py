"""Outputs that are parts of a larger array."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from strided_kernels import COLUMNS, ROWS, side_by_side

from retrograd.core import build
from retrograd.core.arch import SUPPORTED
from retrograd.core.program import Array, Part, layouts_of
from retrograd.core.torch import launch

SM_90 = SUPPORTED["sm_90"]


def test_a_part_has_strides_an_offset_and_an_alignment() -> None:
    parts = [Array("dk", (2, 5, 3), "float16").within(Part("dqkv", 1, place, 3)) for place in range(3)]
    assert {part.whole for part in parts} == {Array("dqkv", (2, 3, 5, 3), "float16")}
    whole = torch.empty(2, 3, 5, 3)
    for part, view in zip(parts, whole.unbind(1), strict=True):
        assert part.strides == layouts_of([part])["dk"].strides == view.stride()
        assert part.offset == view.storage_offset()
        assert part.aligned == (view.storage_offset() * 2 % 16 == 0)
    assert [part.aligned for part in parts] == [True, False, False]


def test_an_output_of_its_own_is_its_whole() -> None:
    array = Array("dq", (2, 5, 3), "float16")
    assert array.whole == array
    assert array.offset == 0
    assert array.strides == (15, 3, 1)
    assert not layouts_of([array])


def test_a_larger_array_has_all_of_its_parts() -> None:
    made = side_by_side()
    assert made.returned == (Array("both", (ROWS, 2, COLUMNS), "float32"),)
    with pytest.raises(ValueError, match=r"both: has the parts \[1\] of 2"):
        _ = replace(made, outputs=made.outputs[1:]).returned


def test_a_launcher_allocates_and_returns_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[Any]] = []
    monkeypatch.setattr(build, "build", lambda *_: None)
    monkeypatch.setattr(build, "descriptor_bytes", lambda *_: 64)  # this memory is allocated behind the outputs
    monkeypatch.setattr(launch, "launcher", lambda _: (lambda *values: seen.append(values), [], []))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    run = launch.prepare(side_by_side(), ["a", "b"], ["both", None, "total"], SM_90, torch.device("cpu", 0))
    a, b = torch.randn(2, ROWS, COLUMNS)
    both, *others = run([a, b])
    assert others == [None, None]
    assert both.shape == (ROWS, 2, COLUMNS)
    assert both.is_contiguous()
    assert both.untyped_storage().nbytes() == 4 * both.numel()
    addresses = [t.data_ptr() for t in (a, b, *both.unbind(1))]
    grids_streams_and_descriptors = 5
    pointers = [[own[0] for own in values[grids_streams_and_descriptors:][:3]] for values in seen]
    assert pointers == [[addresses[0], addresses[1], addresses[2]], [addresses[0], None, addresses[3]]]


@pytest.mark.gpu
def test_a_gpu_writes_to_its_places() -> None:
    a, b = torch.randn(2, ROWS, COLUMNS, device="cuda")
    run = launch.prepare(side_by_side(), ["a", "b"], ["both"], SM_90, torch.device("cuda", 0))
    assert torch.equal(run([a, b])[0], torch.stack([a + b, a], 1))
