"""What tests of `retrograd.jax.nn` share: a drawn model with its exact results, and the error budget of a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import plain_nn
import torch
from torch import Tensor

import retrograd.nn
from retrograd.jax import nn
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays
from retrograd.testing.jax_call import to_jax, to_torch

B, T = 2, 13
DRAWS = 12  # the error budget of a single draw of so small a model varies by chance
CPU = torch.device("cpu")

Run = Callable[..., jax.Array]  # (params, tokens) -> logits


class Draw:
    """Weights, tokens and a gradient of the logits, with the results in float64 and of PyTorch's modules."""

    def __init__(self, config: nn.MambaConfig, seed: int, dtype: torch.dtype = torch.float32) -> None:
        generator = np.random.default_rng(seed)
        self.params = {
            name: weight + 0.1 * generator.standard_normal(weight.shape, np.float32)  # norms, D and rows of A differ
            for name, weight in nn.init(jax.random.key(seed), config).items()
        }
        self.tokens = torch.from_numpy(generator.integers(config.vocab_size, size=(B, T)))
        self.gradient = torch.from_numpy(generator.standard_normal((B, T, config.padded_vocab_size), np.float32))
        model = nn.to_torch(self.params, config)
        weights = {name: model.get_parameter(name).detach().double().requires_grad_() for name in self.params}
        self.exact = self.pulled_back(plain_nn.logits(weights, config, self.tokens), weights)
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                module.to(dtype)
        own: Arrays = {name: model.get_parameter(name) for name in self.params}
        self.plain = self.pulled_back(model(self.tokens), own)

    def pulled_back(self, logits: Tensor, weights: Arrays) -> Arrays:
        found = torch.autograd.grad(logits, list(weights.values()), self.gradient.to(logits.dtype))
        return {"logits": logits.detach()} | {f"d {name}": g for name, g in zip(weights, found, strict=True)}

    def result(self, run: Run) -> Arrays:
        """Logits and gradients of a JAX function."""
        logits, gradients = run(self.params, to_jax(self.tokens.int()), to_jax(self.gradient))
        return {"logits": to_torch(logits, CPU)} | {f"d {name}": to_torch(g, CPU) for name, g in gradients.items()}


def drawn(config: nn.MambaConfig, seed: int, dtype: torch.dtype = torch.float32, draws: int = DRAWS) -> list[Draw]:
    return [Draw(config, seed + number, dtype) for number in range(draws)]


def with_gradients(run: Run) -> Run:
    """(logits, gradients by parameter) of a function (params, tokens) -> logits, jitted."""

    def both(params: Any, tokens: jax.Array, gradient: jax.Array) -> Any:
        logits, pull_back = jax.vjp(lambda params: run(params, tokens), params)
        return logits, pull_back(gradient.astype(logits.dtype))[0]

    return jax.jit(both)


def assert_right(run: Run, draws: list[Draw]) -> None:
    """Assert that logits and all gradients are as close to float64 as those of PyTorch's modules."""
    compiled = with_gradients(run)
    assert_within_budget([(draw.result(compiled), draw.plain, draw.exact) for draw in draws], "retrograd.jax.nn")


def assert_right_logits(run: Run, draws: list[Draw]) -> None:
    """Assert the same of the logits only, which compiles in a third of the time."""
    compiled = jax.jit(run)
    outputs = [{"logits": to_torch(compiled(draw.params, to_jax(draw.tokens.int())), CPU)} for draw in draws]
    assert_within_budget(
        [(m, draw.plain, draw.exact) for m, draw in zip(outputs, draws, strict=True)], "retrograd.jax.nn"
    )


def assert_drawn_alike(config: nn.MambaConfig) -> None:
    """Assert that `nn.init` draws from the distributions of PyTorch's modules.

    Mean and mean square of both samples agree within 6 standard errors of their difference; constants agree.
    """
    torch.manual_seed(0)
    theirs, again = (by_kind(nn.from_torch(retrograd.nn.LanguageModel(config))) for _ in range(2))
    for name, ours in by_kind(nn.init(jax.random.key(0), config)).items():
        if np.array_equal(theirs[name], again[name]):
            np.testing.assert_allclose(ours, theirs[name], rtol=2e-7, err_msg=name)  # log is rounded either way
            continue
        assert ours.size >= 256, name
        for power in (1, 2):
            a, b = ours**power, theirs[name] ** power
            assert abs(a.mean() - b.mean()) < 6 * math.sqrt((a.var() + b.var()) / a.size), (name, power)


def by_kind(params: Any) -> dict[str, np.ndarray]:
    """The elements of parameters of one name, concatenated over all layers, in float64."""
    found: dict[str, list[np.ndarray]] = {}
    for name, array in params.items():
        found.setdefault(".".join(name.split(".")[-2:]), []).append(np.ravel(array).astype(np.float64))
    return {name: np.concatenate(arrays) for name, arrays in found.items()}
