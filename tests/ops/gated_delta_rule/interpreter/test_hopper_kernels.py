"""gated_delta_rule's Hopper kernels in Python: results, gradients and bits in any order of what runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import contract, generation, integration
from checks.interpreter import interpreted
from gluon_in_python import emulated

from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
kept = import_module("gated_delta_rule_kept")

ON_HOPPER = INFO.variant(only="hopper")
OF_CHANNELS = INFO.variant(only="hopper.channels")
F16: dict[str, Any] = {"dtype": "float16", "wide_dtype": "float32"}
CASES = {
    "plain": case("plain", (1, 200, 1, 2, 128, 128), **F16),
    "rows": case("rows", (2, 150, 2, 2, 128, 128), **F16, **ALL),
    "three heads": case("three heads", (1, 70, 1, 3, 128, 128), **F16, **ALL),
    "one step": case("one step", (2, 1, 1, 1, 128, 128), **F16, **ALL),
    "whole blocks": case("whole blocks", (1, 256, 1, 1, 128, 128), **F16, **ALL),
    "strong decay": case("strong decay", (1, 150, 1, 1, 128, 128), decay=3.0, **F16, **ALL),
    "long": case("long", (1, 1110, 1, 1, 128, 128), **F16, **ALL),
    "packed": case("packed", (1, 330, 1, 2, 128, 128), cu_seqlens=(3, 3, 140, 141, 269, 325), **F16, **ALL),
    "packed and long": case("packed and long", (1, 1330, 1, 1, 128, 128), cu_seqlens=(3, 60, 1290, 1320), **F16, **ALL),
}
CHANNELS = {
    name: case(f"{name} of channels", shape, of_channels=True, **F16, **how)
    for name, shape, how in (
        ("rows", (2, 150, 1, 2, 128, 128), ALL),
        ("an odd number", (1, 70, 1, 3, 128, 128), ALL),
        ("whole blocks", (1, 256, 1, 1, 128, 128), ALL),
        ("strong decay", (1, 150, 1, 1, 128, 128), {"decay": 3.0, **ALL}),
        ("long", (1, 1110, 1, 1, 128, 128), ALL),
        ("packed", (1, 330, 1, 2, 128, 128), {"cu_seqlens": (3, 3, 140, 141, 269, 325), **ALL}),
        ("packed and long", (1, 1330, 1, 1, 128, 128), {"cu_seqlens": (3, 60, 1290, 1320), **ALL}),
    )
}
KINDS = {"heads": (ON_HOPPER, CASES), "channels": (OF_CHANNELS, CHANNELS)}
each_kind = pytest.mark.parametrize(("op", "cases"), KINDS.values(), ids=KINDS)
QUICK = ("three heads", "packed")
# Of one draw, always the same: the error of a few gradients of g differs much from draw to draw.
SEEDS = {"heads": 1, "channels": 2}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if name in QUICK else pytest.mark.slow)
        for kind, (_, cases) in KINDS.items()
        for name in cases
    ],
)
def test_they_keep_the_error_budget_in_any_order(kind: str, name: str, seed: int) -> None:
    op, cases = KINDS[kind]
    with interpreted("sm_90"), emulated(seed):
        contract.check_errors(op, cases[name], "cpu", SEEDS[kind], most_draws=1)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("steps", [256, 512])
@pytest.mark.parametrize("name", ["long", "packed and long"])
def test_fewer_states_may_be_saved(op: Any, cases: Any, name: str, steps: int, seed: int) -> None:
    sparse = op.variant(call=kept.keeping(steps))
    with interpreted("sm_90"), emulated(seed):
        contract.check_errors(sparse, cases[name], "cpu", seed, most_draws=1)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("name", ["rows", "packed"])
def test_another_order_gives_the_same_bits(op: Any, cases: Any, name: str, seed: int) -> None:
    found: list[Any] = []
    inputs, gradients = contract.drawn(op, cases[name], "cpu", seed)
    for order in range(2):
        with interpreted("sm_90"), emulated(seed + order):
            found.append(call(op.torch, inputs, options(cases[name]), gradients))
    assert_same_bits(found[1], found[0], f"{name} in another order")


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize(
    ("check", "name"),
    [
        (contract.check_packed, "packed"),
        (contract.check_outside, "packed"),
        (contract.check_batch_invariance, "rows"),
        (contract.check_state_passing, "whole blocks"),
        (integration.check_subsets, "rows"),
        (generation.check_prefix, "rows"),
        (generation.check_continue, "whole blocks"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_they_keep_the_contract_in_any_order(
    op: Any, cases: Any, check: Callable[..., None], name: str, seed: int
) -> None:
    with interpreted("sm_90"), emulated(seed):
        check(op, cases[name], "cpu", seed)


@each_kind
def test_slots_of_no_steps_are_saved(op: Any, cases: Any, seed: int) -> None:
    """In the emulation shared memory that nobody has written holds NaN."""
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    inputs, gradients = contract.drawn(op, cases["packed"], "cpu", seed)
    with interpreted("sm_90"), emulated(seed), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        call(op.torch, inputs, options(cases["packed"]), gradients)
    pairs = [x for x in saved if x.shape[-2:] == (64, 64)]
    assert len(pairs) == 2
    for x in pairs:
        assert x.isfinite().all()
