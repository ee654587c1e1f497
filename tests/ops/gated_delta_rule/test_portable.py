"""gated_delta_rule's portable path, above all in float64, against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import contract
from torch import Tensor

from retrograd import gated_delta_rule
from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule import reference
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.testing.draw import call, options, upcast

each = pytest.mark.parametrize("case", INFO.tagged("test"), ids=lambda case: case.name)


@each
def test_results_and_gradients_are_those_of_the_definition_in_float64(case: Case, seed: int) -> None:
    inputs, gradients = contract.drawn(INFO, case, "cpu", seed)
    wide = {name: upcast(x) for name, x in inputs.items()}
    incoming = [upcast(gradient) for gradient in gradients]
    functions = (gated_delta_rule, reference.gated_delta_rule)
    found, expected = (call(function, wide, options(case), incoming) for function in functions)
    for name, other in expected.items():
        torch.testing.assert_close(found[name], other, rtol=1e-9, atol=1e-9)


@each
def test_the_plain_computation_is_the_definition_in_float64(case: Case, seed: int) -> None:
    inputs, gradients = contract.drawn(INFO, case, "cpu", seed)
    wide = {name: upcast(x) for name, x in inputs.items()}
    incoming = [upcast(gradient) for gradient in gradients]
    functions = (reference.plain, reference.gated_delta_rule)
    found, expected = (call(function, wide, options(case), incoming) for function in functions)
    for name, other in expected.items():
        torch.testing.assert_close(found[name], other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("of_channels", [False, True], ids=["of heads", "of channels"])
@pytest.mark.parametrize(("rate", "log_decay"), [(2.0, 0.0), (1.0, 0.0), (1.0, -200.0), (0.0, -0.1)])
def test_repeated_keys_full_rates_and_full_decays_are_those_of_the_definition(
    rate: float, log_decay: float, of_channels: bool
) -> None:
    torch.manual_seed(0)
    q, v = torch.randn(1, 150, 1, 8, dtype=torch.float64), torch.randn(1, 150, 2, 4, dtype=torch.float64)
    k = reference.unit(torch.randn(1, 1, 1, 8, dtype=torch.float64)).repeat(1, 150, 1, 1)
    g = torch.full((1, 150, 2, *((8,) if of_channels else ())), log_decay, dtype=torch.float64)
    beta = torch.full((1, 150, 2), rate, dtype=torch.float64)
    found, expected = (
        result_and_gradients(function, q, k, v, g, beta) for function in (gated_delta_rule, reference.gated_delta_rule)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_where_kernels_save_few_states_it_saves_none(framework: Any, seed: int) -> None:
    bounds = (1, 20, 20, 38)
    packed = case("few states", (1, 40, 1, 1, 128, 128), of_channels=True, cu_seqlens=bounds, **ALL)
    contract.check_errors(INFO, packed, "cpu", seed, framework=framework, most_draws=1)


def result_and_gradients(function: Any, *arrays: Tensor) -> list[Tensor]:
    """The result, and the gradients of all arrays."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    o = function(*leaves)
    return [o.detach(), *torch.autograd.grad(o.square().sum(), leaves)]
