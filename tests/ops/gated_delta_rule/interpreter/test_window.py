"""The kernels of `gated_delta_rule_step_` in Triton's interpreter: the rows of the sequence, and the window after it.

They are compared with the kernels for a sequence, to the bit, in sequences of a batch that are at different steps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.core.arch import SUPPORTED
from retrograd.core.op import Op
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.ops.gated_delta_rule.cases import case
from retrograd.ops.gated_delta_rule.op import OP
from retrograd.ops.gated_delta_rule.torch_step import IN_PLACE
from retrograd.testing.draw import draw, options

CALLS = {
    "model": case("steps", (2, 130, 1, 2, 16, 8), dtype="float16", wide_dtype="float32", normalize_qk=True),
    "odd": case("steps", (2, 130, 1, 3, 5, 7), dtype="float32", initial_state=True, scale=0.3),
}
BEGUN = (62, 126)  # the steps before, of each sequence


def run(op: Op, given: dict[str, Any]) -> dict[str, Tensor]:
    """The outputs of an op's kernels."""
    arrays, chosen = op.complete(given)
    program = op.forward(spec_of(op, shapes_of(list(arrays.values())), list(chosen.values()))).program(
        {}, SUPPORTED["sm_80"]
    )
    assert program is not None
    found = interpret(program, [arrays[array.name] for array in program.inputs])
    return dict(zip([array.name for array in program.outputs], found, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_its_rows_and_states_are_those_of_the_sequence(name: str, seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS[name], "cpu", seed)
    settings = options(CALLS[name])
    by_step = {key: x for key, x in inputs.items() if key != "initial_state"}
    expected = run(OP, inputs | settings)["o"]
    borders = [begun // 64 * 64 for begun in BEGUN]
    window: dict[str, Any] = {"window_steps": torch.tensor([62, 62], dtype=torch.int32)}
    for key, x in by_step.items():
        if key != "q":
            rows = [x[i, border : border + 64] for i, border in enumerate(borders)]
            window[f"window_{key}"] = torch.stack(rows)
            window[f"window_{key}"][:, 62:] = 7.0  # what has not come yet may be anything finite
    window["window_state"] = torch.cat([state_at(inputs, settings, i, border) for i, border in enumerate(borders)])
    for after in range(4):
        at = [begun + after for begun in BEGUN]
        row = {key: torch.stack([x[i, t] for i, t in enumerate(at)]) for key, x in by_step.items()}
        found = run(IN_PLACE, row | window | settings)
        assert torch.equal(found["o"], torch.stack([expected[i, t] for i, t in enumerate(at)])), after
        window["window_steps"] = found["steps"]
        assert found["steps"].tolist() == [(63, 0, 1, 2)[after]] * 2
    later = [state_at(inputs, settings, i, border + 64) for i, border in enumerate(borders)]
    assert torch.equal(window["window_state"], torch.cat(later))


def state_at(inputs: dict[str, Any], settings: dict[str, Any], i: int, steps: int) -> Tensor:
    """The state of a sequence after so many steps."""
    own = {key: x[i : i + 1] for key, x in inputs.items()}
    if not steps:
        v, q = inputs["v"], inputs["q"]
        return own.get("initial_state", torch.zeros(1, *v.shape[2:], q.shape[3]))
    first = {key: x if key == "initial_state" else x[:, :steps].contiguous() for key, x in own.items()}
    return run(OP, first | settings | {"return_final_state": True})["final_state"]
