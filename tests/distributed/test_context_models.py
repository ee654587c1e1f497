"""Models whose sequences are divided over processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run
from torch import Tensor

from retrograd.nn import Block, LanguageModel, MambaConfig, Mixer, RMSNorm


def test_logits_have_the_bits_of_one_process_and_gradients_add_up_to_its(tmp_path: Path) -> None:
    assert run("context_models.differences", 2, tmp_path) == [[]] * 2


def test_what_does_not_go_with_a_context_is_refused(tmp_path: Path) -> None:
    layers = ("Mamba", "Mamba2", "Attention")
    bounds = "cu_seqlens is 'an array', expected None: the context's layout has the boundaries"
    state = "state is 'given', expected None beside a context"
    expected = [
        f"LanguageModel: {bounds}",
        f"LanguageModel: {state}",
        f"Block: {state}",
        *(f"{layer}: {bounds}" for layer in layers),
        *(f"{layer}: {state}" for layer in layers),
        "causal_conv1d: x has shape (1, 255, 64), expected 256 steps, those of this process",
        "Attention: u has shape (1, 255, 32), expected 256 steps, those of this process",
    ]
    assert run("context_models.refusals", 2, tmp_path) == [expected] * 2


class Sum(Mixer):
    """A layer that takes no context."""

    def initial_state(self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None) -> None:
        return None

    def divide_output(self, by: float) -> None:
        pass

    def forward(self, u: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Any]:
        return u.cumsum(1), state

    def step(self, u: Tensor, state: Any, *, in_place: bool = False) -> tuple[Tensor, Any]:
        return u, state


class Elsewhere:
    """A context that no process group is needed for."""

    def call(self, op: Any, run: Any, arrays: dict[str, Any], settings: dict[str, Any]) -> Any:
        return run(arrays, settings)

    def positions(self, device: torch.device) -> Tensor:
        return torch.arange(3, device=device)


def test_a_layer_that_takes_no_context_works_without_one_alone() -> None:
    ours = LanguageModel(MambaConfig(d_model=8, n_layer=2, vocab_size=16))
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    assert torch.equal(ours(tokens, context=Elsewhere()), ours(tokens))
    ours.backbone.layers[1] = Block(RMSNorm(8), Sum())
    assert ours(tokens).shape == (1, 3, 16)
    with pytest.raises(TypeError, match="unexpected keyword argument 'context'"):
        ours(tokens, context=Elsewhere())
    with pytest.raises(TypeError, match=r"LanguageModel: context is int, expected a retrograd.distributed.Context"):
        ours(tokens, context=2)
