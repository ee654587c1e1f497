"""linear's Hopper kernels in Python: results, gradients and bits in any order of what runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from checks import contract
from checks.interpreter import interpreted
from gluon_in_python import emulated

from retrograd.core.arch import SUPPORTED
from retrograd.core.torch.launch import interpret, reading_early
from retrograd.opinfo.info import spec_of
from retrograd.ops.infos import info
from retrograd.ops.linear.cases import case
from retrograd.ops.linear.op import OP
from retrograd.testing.draw import draw

CASES = {
    "one row": case("one row", (1,), 72, 136, "float16", bias=True),
    "few rows": case("few rows", (3, 5), 136, 264, "float16"),
    "several tiles": case("several tiles", (130,), 200, 328, "float16", bias=True),
    "many terms": case("many terms", (700,), 136, 72, "float16"),
}
ROWS = {"one row": (1, 130), "few rows": (1, 20, 64), "several tiles": (64, 130), "many terms": (700,)}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("name", "rows"), [(name, rows) for name, each in ROWS.items() for rows in each])
def test_they_keep_the_error_budget_in_any_order(name: str, rows: int, parts: int, seed: int) -> None:
    def replan(plan: Any) -> Any:
        return replace(plan.for_rows(rows), parts=parts)

    with interpreted("sm_90"), emulated(seed):
        of_rows = info("linear").variant(only="hopper", replan=replan)
        contract.check_errors(of_rows, CASES[name], "cpu", seed, most_draws=1)


@pytest.mark.parametrize("check", [contract.check_batch_invariance, contract.check_structures])
def test_rows_have_the_same_bits_in_any_number(check: Callable[..., None], seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        check(info("linear").variant(only="hopper"), CASES["few rows"], "cpu", seed)


@pytest.mark.parametrize("rows", [1, 20])
def test_weights_that_are_read_early_change_no_bits(rows: int, seed: int) -> None:
    call = case("early", (rows,), 72, 264, "float16", bias=True)
    inputs = draw(call, "cpu", seed)
    program = OP.forward(spec_of(OP, call)).program({}, SUPPORTED["sm_90"])
    assert program is not None
    early = replace(program, launches=tuple(map(reading_early, program.launches)))
    with emulated(seed):
        found, expected = (interpret(each, [inputs[a.name] for a in each.inputs]) for each in (early, program))
    assert all(map(torch.equal, found, expected))
