"""Transformers models on retrograd's kernels agree with the same models on a CPU without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compat_models import ours
from test_compat_transformers import ULP, three, tokens

from retrograd.compat.transformers import patch

pytestmark = pytest.mark.gpu
TIMES = 16  # what the smallest movement of the parameters does; the hardware's exponential rounds to two such
MODELS = ("mamba", "falcon_mamba", "jamba", "falcon_h1", "nemotron_h")


def gradients(model: Any, seed: int) -> dict[str, torch.Tensor]:
    ids = tokens(seed, time=150).to(model.device)
    model.train()(ids, labels=ids, use_cache=False).loss.backward()
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norms", [False, True], ids=["own norms", "our norms"])
@pytest.mark.filterwarnings("ignore:patch left as they are")  # FalconMamba's norms without a weight
def test_gradients_on_a_gpu_are_those_of_the_slow_path(name: str, norms: bool, seed: int) -> None:
    model, moved, mine, _ = three(name)
    mine = mine.cuda()
    if norms:
        patch(mine)
    expected, near, found = (gradients(each, seed) for each in (model, moved, mine))
    for what, exact in expected.items():
        scale = (near[what] - exact).norm().item() + ULP * exact.norm().item()
        assert (found[what] - exact).norm().item() <= TIMES * scale, what


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_generation_on_a_gpu_takes_the_tokens_of_the_slow_path(name: str, seed: int) -> None:
    model, _, mine, _ = three(name)
    prompt = tokens(seed, time=9)
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 12, "do_sample": False}
    expected = model.eval().generate(prompt, **options)
    options["attention_mask"] = options["attention_mask"].cuda()  # type: ignore[attr-defined]
    assert torch.equal(mine.cuda().eval().generate(prompt.cuda(), **options).cpu(), expected)


# Of Mamba-2 transformers 5.17 has two norms: its own path normalises all channels together, its call of kernels groups.
@pytest.mark.parametrize("name", [*MODELS, "mamba2", "bamba"])
def test_two_runs_give_the_same_bits(name: str, seed: int) -> None:
    first, second = (gradients(ours(name)[0].bfloat16().cuda(), seed) for _ in range(2))
    assert all(torch.equal(first[what], second[what]) for what in first)
