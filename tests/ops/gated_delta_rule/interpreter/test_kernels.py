"""gated_delta_rule's kernels keep the contract in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from checks import contract, generation
from checks.interpreter import as_float16
from checks.layouts import layouts_of
from checks.parts import is_packed
from torch import Tensor

from ops.gated_delta_rule.calls import INFO, gated_delta_rule
from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule import reference
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options, upcast


def slow(tried: Any) -> Any:
    return pytest.param(tried, id=tried.name, marks=pytest.mark.slow)


# One decay a head: with one a channel, calls run on the portable path.
CASES = [as_float16(tried) for tried in INFO.cases if len(tried.inputs["g"].shape) == 3]
# What the others leave out: several products over channels, programs for channels of values, more kept states.
LARGE = [
    case("wide", (1, 66, 1, 1, 256, 40), dtype="float16", **ALL),
    case("wide fp32", (1, 36, 1, 1, 256, 40), dtype="float32", **ALL),
    case("many values", (1, 66, 1, 2, 40, 256), dtype="float16", initial_state=True),
    case("many values fp32", (1, 36, 1, 2, 40, 136), dtype="float32", initial_state=True),
    case("kept states", (1, 330, 1, 2, 16, 16), dtype="float16", cu_seqlens=(3, 3, 140, 329), **ALL),
    case("kept states of wide keys", (1, 530, 1, 1, 160, 16), dtype="float16", **ALL),
    case("many heads", (1, 70, 2, 36, 16, 16), dtype="float32", **ALL),
]
QUICK = ("fp32", "fp16", "own_heads", "odd", "scale", "packed_gaps")
each = pytest.mark.parametrize("case", [*(c if c.name in QUICK else slow(c) for c in CASES)], ids=lambda c: c.name)
few = pytest.mark.parametrize("case", [c for c in CASES if c.name in ("odd", "packed_gaps")], ids=lambda c: c.name)
longer = pytest.mark.parametrize(
    "case",
    [
        case("long", (1, 140, 1, 2, 16, 16), dtype="float32", **ALL),
        slow(case("long fp16", (2, 140, 1, 2, 16, 16), dtype="float16", **ALL)),
    ],
    ids=lambda c: c.name,
)


@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=lambda c: c.name)
def test_results_and_gradients_are_within_the_error_budget(case: Case, seed: int) -> None:
    contract.check_errors(INFO, case, "cpu", seed, most_draws=1)
