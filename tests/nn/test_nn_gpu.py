"""retrograd.nn on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.nn import LanguageModel, MambaConfig, generate

pytestmark = pytest.mark.gpu
CONFIG = MambaConfig(d_model=256, n_layer=3, vocab_size=253)


def trained(device: str, dtype: torch.dtype, *, compiled: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one batch and every gradient, from one seed."""
    torch.manual_seed(0)
    model = LanguageModel(CONFIG)
    ids = torch.randint(CONFIG.vocab_size, (4, 513))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    rounded = {name: p if name.endswith(("A_log", ".D")) else p.to(dtype) for name, p in weights.items()}
    model = LanguageModel(CONFIG, device=device, dtype=dtype)
    model.load_state_dict(rounded, strict=False)
    if device == "cpu":
        model = model.double()
    run = torch.compile(model, fullgraph=True) if compiled else model
    ids = ids.to(device)
    loss = F.cross_entropy(run(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 2**-22), (torch.bfloat16, 2**-9)])
def test_gradients_on_a_gpu_are_those_of_float64(dtype: torch.dtype, roundings: float, compiled: bool) -> None:
    loss, gradients = trained("cuda", dtype, compiled=compiled)
    exact, expected = trained("cpu", dtype)
    # In float32 the hardware's exponential has the largest rounding, 2^-22.
    # Some twenty roundings between a weight and the loss add up like a random walk, with a safety factor.
    assert abs(loss.item() - exact.item()) <= 20 * roundings * exact.item()
    for name, gradient in gradients.items():
        error = (gradient.double().cpu() - expected[name]).norm() / expected[name].norm()
        assert error <= 40 * roundings, f"{name}: {error:.2e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_runs_give_the_same_bits(dtype: torch.dtype) -> None:
    (first, gradients), (second, again) = trained("cuda", dtype), trained("cuda", dtype)
    assert torch.equal(first, second)
    assert all(torch.equal(gradients[name], again[name]) for name in gradients)


def test_steps_take_the_tokens_that_the_whole_forward_takes() -> None:
    torch.manual_seed(0)
    model = LanguageModel(CONFIG, device="cuda")
    text = torch.randint(CONFIG.vocab_size, (2, 70), device="cuda")
    generated = torch.stack(list(generate(model, text, 20, temperature=0.0)), 1)
    for t in range(20):
        assert torch.equal(model(text)[:, -1, : CONFIG.vocab_size].argmax(-1), generated[:, t])
        text = torch.cat((text, generated[:, t : t + 1]), 1)
