"""gated_delta_rule's kernels keep the contract in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks import contract, generation, integration
from checks.interpreter import as_float16
from checks.layouts import layouts_of

from retrograd import gated_delta_rule
from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule import reference
from retrograd.ops.gated_delta_rule.cases import ALL, STRIDED, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.testing.draw import call, options, upcast

NAMED = [as_float16(tried) for tried in INFO.tagged("test")]
FP32: dict[str, Any] = {"dtype": "float32", **ALL}
# What the named cases leave out: several products over channels, several programs for a state, more kept states.
MORE = [
    case("wide", (1, 66, 1, 1, 256, 40), dtype="float16", **ALL),
    case("wide fp32", (1, 36, 1, 1, 256, 40), **FP32),
    case("many values", (1, 66, 1, 2, 40, 256), dtype="float16", initial_state=True),
    case("many values fp32", (1, 36, 1, 2, 40, 136), dtype="float32", initial_state=True),
    case("kept states", (1, 330, 1, 2, 16, 16), dtype="float16", cu_seqlens=(3, 3, 140, 329), **ALL),
    case("kept states of wide keys", (1, 530, 1, 1, 160, 16), dtype="float16", **ALL),
    case("many heads", (1, 70, 2, 36, 16, 16), **FP32),
    case("wide channels", (1, 66, 1, 1, 256, 40), of_channels=True, dtype="float16", **ALL),
    case("wide channels fp32", (1, 36, 1, 2, 136, 40), of_channels=True, **FP32),
    case("kept states of channels", (1, 330, 1, 2, 40, 72), dtype="float16", of_channels=True, decay=1.0,
         cu_seqlens=(3, 3, 140, 329), **ALL),
    case("few states of channels", (1, 1100, 1, 1, 128, 128), dtype="float16", of_channels=True, **ALL),
    case("many heads of channels", (1, 40, 1, 18, 8, 8), of_channels=True, **FP32),
]  # fmt: skip
PACKED = case("packed", (1, 50, 1, 2, 8, 4), cu_seqlens=(2, 2, 40, 48), **FP32)
PACKED_CHANNELS = case("packed channels", (1, 50, 1, 2, 8, 4), of_channels=True, cu_seqlens=(2, 2, 40, 48), **FP32)
LONG = case("long", (1, 140, 1, 1, 8, 4), **FP32)
LONG_CHANNELS = case("long channels", (1, 140, 1, 1, 8, 4), of_channels=True, **FP32)
ROWS = case("rows", (2, 34, 1, 2, 5, 7), tags=STRIDED, **FP32)
ROWS_CHANNELS = case("rows channels", (2, 34, 1, 2, 5, 7), of_channels=True, tags=STRIDED, **FP32)
QUICK = ("odd", "no_steps", "packed_gaps", "channels_packed")


def marked(cases: list[Case], quick: Callable[[Case], bool]) -> Any:
    """The cases; those that are not quick in the interpreter are `slow`."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=marks[quick(c)]) for c in cases])


@marked([*NAMED, *MORE], lambda case: case.name in QUICK)
def test_results_and_gradients_are_within_the_error_budget(case: Case, seed: int) -> None:
    contract.check_errors(INFO, case, "cpu", seed, most_draws=1)


@marked([ROWS, ROWS_CHANNELS, *NAMED], lambda case: case is ROWS)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(case: Case, seed: int) -> None:
    contract.check_batch_invariance(INFO, case, "cpu", seed)


@marked([PACKED, PACKED_CHANNELS, *(c for c in NAMED if "packed" in c.name)], lambda case: case is PACKED)
def test_a_packed_sequence_has_the_same_bits_alone_and_beside_nan(case: Case, seed: int) -> None:
    contract.check_packed(INFO, case, "cpu", seed)


@pytest.mark.parametrize("case", [PACKED, PACKED_CHANNELS], ids=lambda case: case.name)
def test_steps_outside_of_sequences_have_zeros_whatever_is_there(case: Case, seed: int) -> None:
    contract.check_outside(INFO, case, "cpu", seed)


@marked(
    [LONG, LONG_CHANNELS, *(c for c in NAMED if generation.has_prefixes(INFO, c))],
    lambda case: case in (LONG, LONG_CHANNELS),
)
def test_steps_have_the_same_bits_whatever_follows_them(case: Case, seed: int) -> None:
    generation.check_prefix(INFO, case, "cpu", seed)


@marked(
    [LONG, LONG_CHANNELS, *(c for c in NAMED if generation.can_be_cut(INFO, c))],
    lambda case: case in (LONG, LONG_CHANNELS),
)
def test_a_sequence_in_two_calls_has_the_bits_of_the_whole(case: Case, seed: int) -> None:
    generation.check_continue(INFO, case, "cpu", seed)


@marked([c for c in NAMED if contract.passes_state(INFO, c)], lambda case: case.name == "no_steps")
def test_gradients_pass_through_states(case: Case, seed: int) -> None:
    contract.check_state_passing(INFO, case, "cpu", seed)


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        pytest.param(case, layout, marks=pytest.mark.slow, id=f"{case.name} {layout}")
        for case in (ROWS, ROWS_CHANNELS)
        for layout in layouts_of(INFO, case)
    ],
)
def test_kernels_reach_every_element_of_strided_arrays(case: Case, layout: str, seed: int) -> None:
    contract.check_layout(INFO, case, layout, "cpu", seed, once=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", [ROWS, PACKED, ROWS_CHANNELS, PACKED_CHANNELS], ids=lambda case: case.name)
def test_a_gradient_asked_for_alone_has_the_same_bits(case: Case, seed: int) -> None:
    integration.check_subsets(INFO, case, "cpu", seed)


@pytest.mark.parametrize("of_channels", [False, True], ids=["of heads", "of channels"])
@pytest.mark.parametrize("normalize_qk", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rate", "log_decay"),
    [
        (2.0, 0.0),
        (1.5, -float("inf")),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in [(1.0, -300.0), (0.0, -0.1)]),
    ],
)
def test_repeated_keys_full_rates_and_full_decays_are_those_of_the_definition(
    rate: float, log_decay: float, normalize_qk: bool, of_channels: bool, seed: int
) -> None:
    given: dict[str, Any] = {"normalize_qk": normalize_qk, "of_channels": of_channels}
    tried = case("repeated", (1, 70, 1, 1, 8, 4), dtype="float32", **given)
    inputs, gradients = contract.drawn(INFO, tried, "cpu", seed)
    inputs["k"][:] = reference.unit(inputs["k"][:, :1])
    inputs["g"].fill_(log_decay)
    inputs["beta"].fill_(rate)
    found = call(gated_delta_rule, inputs, options(tried), gradients)
    wide = {name: upcast(x) for name, x in inputs.items()}
    if log_decay < -200:  # of exp(-inf), autograd has no gradient
        wide["g"].fill_(-200.0)
    expected = call(INFO.reference, wide, options(tried), [upcast(gradient) for gradient in gradients])
    for name, other in expected.items():
        error = torch.linalg.vector_norm(upcast(found[name]) - other)
        # With rates of 2 nothing is forgotten: the plain computation in fp32 loses up to 2e-5 of the norm.
        assert error <= 1e-4 * torch.linalg.vector_norm(other) + 1e-6, name
