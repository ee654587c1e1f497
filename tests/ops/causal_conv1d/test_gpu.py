"""causal_conv1d where 32-bit offsets overflow, in both layouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from retrograd import causal_conv1d
from retrograd.ops.causal_conv1d import reference
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays, call, normal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("large_arrays")]

D, W = 4096, 4
STEPS = (2**31 + 2**20) // D
BEYOND = 2**31 // D  # the first step whose elements are beyond 2^31
SILU = {"activation": "silu"}


def channels_last(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def time_last(shape: tuple[int, ...]) -> Tensor:
    B, T, D = shape
    return torch.empty((B, D, T), dtype=torch.bfloat16, device="cuda").transpose(1, 2)


def fill(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in parts, since fp32 takes twice the memory."""
    for part in tensor.split(2**15, 1):
        part.copy_(normal(part.shape, generator))
    return tensor


def cut(inputs: Arrays, dy: Tensor, start: int, stop: int) -> tuple[Arrays, Tensor]:
    """A range of steps, with the W - 1 inputs before it as the initial state."""
    before = inputs["x"][:, max(start - (W - 1), 0) : start].transpose(1, 2)
    state = torch.nn.functional.pad(before, (W - 1 - before.shape[2], 0))
    return inputs | {"x": inputs["x"][:, start:stop].contiguous(), "initial_state": state}, dy[
        :, start:stop
    ].contiguous()


@pytest.mark.parametrize("layout", [channels_last, time_last])
def test_more_elements_than_32_bits_count(layout: Callable[[tuple[int, ...]], Tensor], seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = {"x": fill(layout((1, STEPS, D)), generator), "weight": normal((D, W), generator) / 2}
    dy = fill(layout((1, STEPS, D)), generator)
    result = call(causal_conv1d, inputs, SILU, [dy])
    for start in (0, BEYOND // 2, BEYOND - 32, STEPS - 64):
        part, gradient = cut(inputs, dy, start, start + 64)
        plain = call(reference.causal_conv1d, part, SILU, [gradient])
        upcast = {name: tensor.double() for name, tensor in part.items()}
        exact = call(reference.causal_conv1d, upcast, SILU, [gradient.double()])
        # The gradients of the last W - 1 steps of a part lack the terms of later steps.
        last = 64 if start + 64 == STEPS else 64 - (W - 1)
        found = {"y": result["y"][:, start : start + 64], "d x": result["d x"][:, start : start + last]}
        plain, exact = ({"y": arrays["y"], "d x": arrays["d x"][:, :last]} for arrays in (plain, exact))
        assert_within_budget([(found, plain, exact)], f"steps {start} on")

    plain_sum, exact_sum = (torch.zeros((D, W), dtype=dtype, device="cuda") for dtype in (torch.float32, torch.float64))
    for start in range(0, STEPS, 2**13):
        part, gradient = cut(inputs, dy, start, start + 2**13)
        plain_sum += call(reference.causal_conv1d, part, SILU, [gradient])["d weight"]
        upcast = {name: tensor.double() for name, tensor in part.items()}
        exact_sum += call(reference.causal_conv1d, upcast, SILU, [gradient.double()])["d weight"]
    draws = [({"d weight": result["d weight"]}, {"d weight": plain_sum}, {"d weight": exact_sum})]
    assert_within_budget(draws, "all steps")


def test_sequences_beyond_32_bits(seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = {"x": fill(channels_last((1, STEPS, D)), generator), "weight": normal((D, W), generator) / 2}
    bounds = torch.tensor([0, BEYOND - 10, BEYOND + 7, BEYOND + 7, STEPS], dtype=torch.int32, device="cuda")
    packed = causal_conv1d(inputs["x"], inputs["weight"], cu_seqlens=bounds, activation="silu")
    for start, stop in ((BEYOND - 10, BEYOND + 7), (BEYOND + 7, STEPS)):
        alone = causal_conv1d(inputs["x"][:, start:stop], inputs["weight"], activation="silu")
        assert torch.equal(alone, packed[:, start:stop])
