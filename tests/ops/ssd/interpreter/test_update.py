"""The kernel of `ssd_update_` in Triton's interpreter, on any call of `ssd_update`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import retrograd
from retrograd.core.arch import SUPPORTED
from retrograd.core.torch.launch import interpret
from retrograd.core.torch.passes import shapes_of, spec_of
from retrograd.ops.ssd.cases import ALL, case
from retrograd.ops.ssd.torch_step import UPDATE
from retrograd.testing.draw import draw, options

CALLS = {
    "mamba": case("update", (2, 3, 4, 16, 1, 32), dtype="float16"),
    "everything": case("update", (2, 3, 4, 5, 2, 7), dtype="float32", dt_limit=(0.02, 0.5), wide_D=True, **ALL),
    "nothing": case("update", (1, 3, 3, 72, 3, 130), dtype="float16", given=frozenset()),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_overwrites_the_state_with_that_of_the_operations(name: str, seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS[name], "cpu", seed)
    settings = {key: value for key, value in options(CALLS[name]).items() if key in ("dt_softplus", "dt_limit")}
    batch, _, heads, P = inputs["x"].shape
    row = {n: t[:, 1].contiguous() if n in ("x", "dt", "B", "C", "z") else t for n, t in inputs.items()}
    row["state"] = torch.randn(batch, heads, P, inputs["B"].shape[3])
    row.pop("initial_state", None)
    y, state = retrograd.ssd_update(**row, **settings)
    arrays, chosen = UPDATE.complete(row | settings)
    spec = spec_of(UPDATE, shapes_of(list(arrays.values())), list(chosen.values()))
    program = UPDATE.forward(spec).program({}, SUPPORTED["sm_90"])
    assert program is not None
    (found,) = interpret(program, [arrays[array.name] for array in program.inputs])
    torch.testing.assert_close(found, y, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(arrays["state"], state, rtol=1e-5, atol=1e-5)
