"""The kernel of `causal_conv1d_update_` in Triton's interpreter: the bits of the sequence's kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ..steps import in_place


@pytest.mark.parametrize(
    ("width", "dtype", "options"),
    [
        (4, torch.bfloat16, {}),
        (4, torch.float32, {"bias": False}),
        (3, torch.float16, {"weight_dtype": torch.float16, "activation": None}),
        (2, torch.float32, {"channels": 256, "rows": 1}),
        (2, torch.bfloat16, {"weight_dtype": torch.bfloat16}),
        (7, torch.bfloat16, {}),
    ],
)
def test_steps_overwrite_the_state_with_the_bits_of_the_others(
    width: int, dtype: torch.dtype, options: dict[str, Any], seed: int
) -> None:
    assert in_place("cpu", seed, width, dtype, **options)


@pytest.mark.parametrize("width", [1, 9])
def test_other_widths_leave_the_state_as_it_is(width: int, seed: int) -> None:
    assert not in_place("cpu", seed, width, torch.float32)
