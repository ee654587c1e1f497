"""The kernels of `ssd_step_` in Triton's interpreter: they have the rows of `ssd`, and overwrite their window.

Their bits are compared on a GPU (test_generation.py); the interpreter has other matrix products.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import retrograd
from retrograd.core.arch import SUPPORTED
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.ops.ssd.cases import MAMBA, case
from retrograd.ops.ssd.steps import SsdWindow
from retrograd.ops.ssd.torch_step import IN_PLACE
from retrograd.testing.draw import draw, options

TIME = 140
CALLS = {
    "mamba": case("row", (2, TIME, 2, 64, 1, 64), dtype="float16"),
    "two groups, a wide skip": case("row", (2, TIME, 2, 128, 2, 128), dtype="float16", wide_D=True),
    "halves of states": case("row", (1, TIME, 2, 64, 1, 256), dtype="float16", given=MAMBA - {"D", "dt_bias"}),
}


def in_place(window: SsdWindow, row: dict[str, Any], settings: dict[str, Any]) -> tuple[torch.Tensor, SsdWindow]:
    """A step by the kernels for Hopper, in the interpreter."""
    arrays, chosen = IN_PLACE.complete(row | {f"window_{name}": t for name, t in window._asdict().items()} | settings)
    spec = spec_of(IN_PLACE, shapes_of(list(arrays.values())), list(chosen.values()))
    program = IN_PLACE.forward(spec).program({}, SUPPORTED["sm_90"])
    assert program is not None
    y, steps = interpret(program, [arrays[array.name] for array in program.inputs])
    return y, window._replace(steps=steps)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begun", [0, 60])
def test_steps_in_place_have_the_rows_and_the_window_of_other_steps(name: str, begun: int, seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS[name], "cpu", seed)
    settings = options(CALLS[name])
    along = ("x", "dt", "B", "C")

    def part(steps: Any) -> dict[str, Any]:
        return {n: t[:, steps].contiguous() if n in along else t for n, t in inputs.items()}

    _, expected = retrograd.ssd_prefill(**part(slice(begun)), **settings)
    window = SsdWindow(*(t.clone() for t in expected))
    for t in range(begun, begun + 6):
        before = window
        y, window = in_place(window, part(t), settings)
        row, expected = retrograd.ssd_step(expected, **part(t), **settings)
        torch.testing.assert_close(y, row, rtol=2e-2, atol=2e-2)
        assert torch.equal(window.steps, expected.steps)
        for ours, old, theirs in zip(window[:-1], before, expected, strict=False):
            assert ours is old
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
