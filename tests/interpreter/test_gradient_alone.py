"""Gradients that are wanted alone have the bits that they have beside all others.

That of an initial state is computed by contexts without a forward pass, and those of x and states by ssd without the
launches of the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import retrograd
from retrograd.core.torch.passes import gradient_alone

B, T, D, N, H, P = 2, 70, 5, 4, 2, 4


class Noted:
    """A context that notes a call."""

    def call(self, op: Any, run: Any, arrays: dict[str, Any], settings: dict[str, Any]) -> Any:
        self.op, self.arrays, self.options = op, [x if x is None else x.detach() for x in arrays.values()], settings
        return run(arrays, settings)


def of_steps(*shape: int) -> Tensor:
    return torch.randn(B, T, *shape)


CALLS: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {
    "linear_scan": ({"a": of_steps(D).sigmoid(), "b": of_steps(D), "initial_state": torch.randn(B, D)}, {}),
    "selective_scan": (
        {
            "x": of_steps(D),
            "dt": of_steps(D),
            "A": -torch.rand(D, N),
            "B": of_steps(N),
            "C": of_steps(N),
            "z": of_steps(D),
            "initial_state": torch.randn(B, D, N),
        },
        {"dt_softplus": True},
    ),
    "ssd": (
        {
            "x": of_steps(H, P),
            "dt": of_steps(H),
            "A": -torch.rand(H),
            "B": of_steps(1, N),
            "C": of_steps(1, N),
            "z": of_steps(H, P),
            "initial_state": torch.randn(B, H, P, N),
        },
        {"dt_softplus": True},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_few_gradients_have_the_bits_that_they_have_beside_all_others(name: str) -> None:
    arrays, options = CALLS[name]
    inputs, noted = {name: x.clone().requires_grad_() for name, x in arrays.items()}, Noted()
    results = getattr(retrograd, name)(**inputs, **options, return_final_state=True, context=noted)
    gradients = [torch.randn_like(result) for result in results]
    expected = dict(zip(inputs, torch.autograd.grad(results, list(inputs.values()), gradients), strict=True))
    alone = gradient_alone(noted.op, "initial_state", noted.arrays, tuple(noted.options.values()), gradients)
    assert torch.equal(alone, expected["initial_state"])
    names = [next(iter(inputs)), "initial_state"]
    few = arrays | {name: arrays[name].clone().requires_grad_() for name in names}
    results = getattr(retrograd, name)(**few, **options, return_final_state=True)
    found = torch.autograd.grad(results, [few[each] for each in names], gradients)
    assert all(torch.equal(one, expected[wanted]) for wanted, one in zip(names, found, strict=True))
