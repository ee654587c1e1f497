"""The calls of causal_conv1d under the sanitizers, which come to every kernel."""

from __future__ import annotations

import torch

import retrograd

NAMED = (
    "silu",
    "one_channel",
    "states",
    "packed_states",
    "short",
)


def steps_in_place(device: str) -> None:
    """A few of several rows, of a whole number of programs and of one more channel."""
    for D, W in ((128, 4), (129, 2)):
        inputs, weight, state = (torch.randn(shape, device=device) for shape in ((3, 2, D), (D, W), (2, D, W - 1)))
        for x in inputs:
            y, state = retrograd.causal_conv1d_update_(x, state, weight, weight[:, 0], activation="silu")
            assert y.isfinite().all()


STEPS = (steps_in_place,)
