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
QUICK = ("three heads", "packed")
EACH, EACH_OF_CHANNELS = (
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in cases]
    for cases in (CASES, CHANNELS)
)


@pytest.mark.parametrize("name", EACH)
def test_they_keep_the_error_budget_in_any_order(name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        # One draw, always the same: the error of a few gradients of g differs much from draw to draw.
        contract.check_errors(ON_HOPPER, CASES[name], "cpu", 1, most_draws=1)


@pytest.mark.parametrize("name", EACH_OF_CHANNELS)
def test_so_do_those_for_a_decay_for_each_channel(name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        contract.check_errors(OF_CHANNELS, CHANNELS[name], "cpu", 2, most_draws=1)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "cases"), [(ON_HOPPER, CASES), (OF_CHANNELS, CHANNELS)], ids=["heads", "channels"])
@pytest.mark.parametrize("steps", [256, 512])
@pytest.mark.parametrize("name", ["long", "packed and long"])
def test_fewer_states_may_be_saved(op: Any, cases: Any, name: str, steps: int, seed: int) -> None:
    sparse = op.variant(call=kept.keeping(steps))
    with interpreted("sm_90"), emulated(seed):
        contract.check_errors(sparse, cases[name], "cpu", seed, most_draws=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "packed"])
def test_another_order_gives_the_same_bits(name: str, seed: int) -> None:
    found: list[Any] = []
    inputs, gradients = contract.drawn(ON_HOPPER, CASES[name], "cpu", seed)
    for order in range(2):
        with interpreted("sm_90"), emulated(seed + order):
            found.append(call(ON_HOPPER.torch, inputs, options(CASES[name]), gradients))
    assert_same_bits(found[1], found[0], f"{name} in another order")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "name"),
    [
        (contract.check_packed, "packed"),
        (contract.check_outside, "packed"),
        (contract.check_batch_invariance, "rows"),
        (contract.check_state_passing, "whole blocks"),
        (integration.check_subsets, "rows"),
        (generation.check_prefix, "plain"),
        (generation.check_continue, "whole blocks"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_they_keep_the_contract_in_any_order(check: Callable[..., None], name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        check(ON_HOPPER, CASES[name], "cpu", seed)


@pytest.mark.slow
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
def test_so_do_those_for_channels(check: Callable[..., None], name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        check(OF_CHANNELS, CHANNELS[name], "cpu", seed)


@pytest.mark.parametrize(("op", "cases"), [(ON_HOPPER, CASES), (OF_CHANNELS, CHANNELS)], ids=["heads", "channels"])
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
