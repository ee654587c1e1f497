"""The calls of gated_delta_rule under the sanitizers, which come to every kernel."""

from __future__ import annotations

from typing import Any

import torch

import retrograd
from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.testing.draw import draw, options

NAMED = ("odd", "one_step", "packed_gaps")
# Several products over channels, several programs for a state, more than one kept state.
MORE: list[Case] = [
    case("blocks_128", (1, 150, 1, 2, 128, 128), **ALL),
    case("blocks_256", (1, 270, 1, 1, 256, 136), dtype="float16"),
    case("single", (1, 70, 1, 2, 40, 40), dtype="float32", **ALL),
    case("channels_128", (1, 1090, 1, 2, 128, 128), of_channels=True, **ALL),
    case("channels_256", (1, 270, 1, 1, 256, 136), of_channels=True, dtype="float16"),
    case("channels_single", (1, 70, 1, 2, 40, 40), of_channels=True, dtype="float32", **ALL),
    case("channels_packed", (1, 180, 1, 2, 128, 64), of_channels=True, cu_seqlens=(3, 4, 4, 140, 170), **ALL),
    case("packed_128", (1, 180, 1, 2, 128, 64), cu_seqlens=(3, 4, 4, 140, 170), **ALL),
    case("packed_128_128", (1, 180, 1, 3, 128, 128), cu_seqlens=(3, 4, 4, 140, 170), **ALL),
]


def update_in_place(device: str) -> None:
    """Of a state of several programs, with decays of heads and of channels."""
    for of_channels in (False, True):
        call = case("steps", (2, 2, 1, 2, 128, 72), of_channels=of_channels, normalize_qk=True)
        inputs: dict[str, Any] = draw(call, device, 0)
        state = torch.zeros(2, 2, 72, 128, device=device)
        for t in range(2):
            row = {name: tensor[:, t] for name, tensor in inputs.items()}
            o, state = retrograd.gated_delta_rule_update_(state, **row, **options(call))
            assert o.isfinite().all()


def steps_in_place(device: str) -> None:
    """A few across a border, of sequences with several programs for their rows."""
    call = case("steps", (2, 67, 2, 8, 128, 136), normalize_qk=True)
    inputs: dict[str, Any] = draw(call, device, 0)
    first = {name: tensor[:, :62] for name, tensor in inputs.items()}
    _, window = retrograd.gated_delta_rule_prefill(**first, **options(call))
    for t in range(62, 67):
        row = {name: tensor[:, t] for name, tensor in inputs.items()}
        o, window = retrograd.gated_delta_rule_step_(window, **row, **options(call))
        assert o.isfinite().all()


STEPS = (update_in_place, steps_in_place)
