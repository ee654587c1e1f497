"""The kernel of `gated_delta_rule_update_` in Triton's interpreter, on any call of `gated_delta_rule_update`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import retrograd
from retrograd.core.arch import SUPPORTED
from retrograd.core.program import Layout
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.ops.gated_delta_rule.cases import case
from retrograd.ops.gated_delta_rule.torch_step import UPDATE
from retrograd.testing.draw import draw, options

CALLS = {
    "model": case("update", (2, 3, 2, 4, 32, 16), dtype="float16", wide_dtype="float32", normalize_qk=True),
    "odd": case("update", (2, 3, 1, 3, 5, 7), dtype="float32", scale=0.3),
    "channels": case("update", (1, 3, 2, 2, 72, 130), dtype="float16", of_channels=True, normalize_qk=True),
}


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("name", CALLS)
def test_it_overwrites_the_state_with_that_of_the_operations(name: str, strided: bool, seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS[name], "cpu", seed)
    settings = options(CALLS[name])
    row = {n: t[:, 1] if strided else t[:, 1].contiguous() for n, t in inputs.items()}
    row["state"] = torch.randn(len(inputs["v"]), *inputs["v"].shape[2:], inputs["q"].shape[3])
    o, state = retrograd.gated_delta_rule_update(**row, **settings)
    arrays, chosen = UPDATE.complete(row | settings)
    spec = spec_of(UPDATE, shapes_of(list(arrays.values())), list(chosen.values()))
    layouts = {name: Layout(array.stride()) for name, array in arrays.items()} if strided else {}
    program = UPDATE.forward(spec).program(layouts, SUPPORTED["sm_90"])
    assert program is not None
    (found,) = interpret(program, [arrays[array.name] for array in program.inputs])
    torch.testing.assert_close(found, o, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(arrays["state"], state, rtol=1e-5, atol=1e-5)
