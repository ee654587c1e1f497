"""gated_delta_rule's portable path: the contract's promises, and its gradients against its definition in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from checks import contract, generation
from checks.parts import is_packed
from torch import Tensor

from ops.gated_delta_rule.calls import INFO, OPTIONS, gated_delta_rule
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.torch.xp import torch_namespace
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.gated_delta_rule import portable, reference
from retrograd.ops.gated_delta_rule.op import OP
from retrograd.testing.draw import call, draw, options, upcast

each = pytest.mark.parametrize("case", INFO.cases, ids=lambda case: case.name)


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
def test_errors_are_within_the_budget(case: Case, seed: int) -> None:
    contract.check_errors(INFO, case, "cpu", seed)


@each
def test_rows_and_sequences_have_the_same_bits_alone_and_together(case: Case, seed: int) -> None:
    contract.check_repeats(INFO, case, "cpu", seed)
    contract.check_batch_invariance(INFO, case, "cpu", seed)
    if is_packed(case):
        contract.check_packed(INFO, case, "cpu", seed)
    if contract.has_gaps(INFO, case):
        contract.check_outside(INFO, case, "cpu", seed)


@each
def test_parts_of_a_sequence_have_the_results_of_the_whole(case: Case, seed: int) -> None:
    if contract.passes_state(INFO, case):
        contract.check_state_passing(INFO, case, "cpu", seed)
    if generation.has_prefixes(INFO, case):
        generation.check_prefix(INFO, case, "cpu", seed)


@pytest.mark.parametrize("case", INFO.tagged("strided"), ids=lambda case: case.name)
def test_both_frameworks_have_the_same_results(case: Case, seed: int) -> None:
    inputs = {name: x.float() if x.is_floating_point() else x for name, x in draw(case, "cpu", seed).items()}
    spec = spec_of(OP, replace(case, options=OPTIONS | dict(case.options)))
    by_torch = portable.forward(torch_namespace(), spec, inputs)
    in_jax = {name: jax.numpy.asarray(x.numpy()) for name, x in inputs.items()}
    by_jax = jax.jit(lambda arrays: portable.forward(jax_namespace(), spec, arrays))(in_jax)
    for name, array in by_torch.items():
        expected = array.float().numpy()
        np.testing.assert_allclose(np.asarray(by_jax[name], np.float32), expected, rtol=1e-2, atol=1e-4)


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


def result_and_gradients(function: Any, *arrays: Tensor) -> list[Tensor]:
    """The result, and the gradients of all arrays."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    o = function(*leaves)
    return [o.detach(), *torch.autograd.grad(o.square().sum(), leaves)]
