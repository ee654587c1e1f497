"""The calls of ssd under the sanitizers, which come to every kernel."""

from __future__ import annotations

from typing import Any

import retrograd
from retrograd.opinfo.cases import Case
from retrograd.ops.ssd.cases import ALL, MAMBA, case
from retrograd.testing.draw import draw, options

NAMED = (
    "one_head",
    "one_step",
)
# Few heads, in full and partial tiles; a group of more heads than one program computes.
MORE: list[Case] = [
    case("tiles", (1, 150, 2, 64, 1, 128)),
    case("not_full", (1, 270, 2, 72, 2, 136), dtype="float16", wide_D=True, **ALL),
    case("single", (1, 140, 1, 40, 1, 40), dtype="float32", **ALL),
    case("packed_gaps", (1, 180, 2, 64, 1, 64), cu_seqlens=(3, 4, 4, 140, 170), **ALL),
    case("many_heads", (2, 70, 36, 16, 2, 16), given=MAMBA | {"z"}),
]
# The Hopper kernels, in spans and on whole sequences: an odd number of slices, and enough blocks to refill every
# buffer.
HOPPER: list[Case] = [
    case("hopper", (1, 530, 3, 64, 1, 128), initial_state=True, return_final_state=True),
    case("hopper_256", (1, 530, 2, 64, 1, 256), cu_seqlens=(3, 4, 4, 270, 520), initial_state=True),
    case("hopper_packed", (1, 530, 2, 128, 1, 64), cu_seqlens=(3, 4, 4, 270, 520), dtype="float16"),
]
MORE += HOPPER
WHOLE = [case.name for case in HOPPER]  # also run on whole sequences


def steps_in_place(device: str) -> None:
    """A few across a border, of a row of several slices and of the halves of its states."""
    for shape in ((2, 68, 3, 64, 1, 128), (1, 68, 2, 128, 2, 256)):
        call = case("steps", shape)
        inputs, settings = draw(call, device, 0), options(call)
        _, window = retrograd.ssd_prefill(**part(inputs, slice(62)), **settings)
        for t in range(62, 67):
            y, window = retrograd.ssd_step_(window, **part(inputs, t), **settings)
            assert y.isfinite().all()
        y, _ = retrograd.ssd_update_(window.state, **part(inputs, 67), **settings)
        assert y.isfinite().all()


def part(inputs: dict[str, Any], steps: Any) -> dict[str, Any]:
    """Some steps of the arrays that have them."""
    return {name: tensor[:, steps] if name in ("x", "dt", "B", "C") else tensor for name, tensor in inputs.items()}


STEPS = (steps_in_place,)
