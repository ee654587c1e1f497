"""Transformers models agree on retrograd's functions and on their own.

The tolerance between two float32 computations is measured on the model: the change of its results when every parameter
changes by one unit in its last place, which is the smallest effect of rounding. A different order of sums has a few
times that effect in every layer.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from compat_models import MODELS, VOCABULARY, ours, slow
from torch import Tensor

pytest.importorskip("transformers", reason="the package transformers is not installed")

from retrograd.compat.transformers import register

ULP = 2.0**-23
TIME = 21
# Times that change. It shows one ulp of a sum's terms, by their norm. A float32 sum of n terms, in another order, may
# differ by n ulps of the sum of their sizes, which is up to sqrt(n) times their norm; scans sum over time.
TIMES = TIME**1.5
STEPS = 20
TRAINED = ("mamba", "falcon_mamba", "jamba", "mamba2", "nemotron_h")  # for all steps; others for 3

# The functions that each model calls: in training, in evaluation, and for every generated token.
CONVOLUTION_AND_SCAN = {"causal_conv1d_fn", "selective_scan_fn"}
UPDATES = {"causal_conv1d_update", "selective_state_update"}
MAMBA1 = ("mamba", "falcon_mamba", "jamba")
TRAINING = {
    "mamba": {"mamba_inner_fn"},
    "falcon_mamba": {"mamba_inner_fn", *CONVOLUTION_AND_SCAN},  # the first declines, so the others are called
    "jamba": CONVOLUTION_AND_SCAN,
}
FUSED = {"mamba_split_conv1d_scan_combined"}  # of Mamba-2's family
CONVOLUTION_AND_CHUNKS = {"causal_conv1d_fn", "mamba_chunk_scan_combined"}

each_model = pytest.mark.parametrize("name", MODELS)


def tokens(seed: int, batch: int = 2, time: int = TIME) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(seed))


def three(name: str) -> tuple[Any, Any, Any, Counter[str]]:
    """A model on its own functions, the same with parameters changed by one ulp, the same on ours; and our calls."""
    model, moved, (mine, calls) = slow(name), slow(name), ours(name)
    mine.load_state_dict(model.state_dict())
    signs = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p, q in zip(model.parameters(), moved.parameters(), strict=True):
            q.copy_(p * (1 + ULP * (2 * torch.randint(2, p.shape, generator=signs) - 1)))
    return model, moved, mine, calls


def assert_as_close(mine: Tensor, model: Tensor, moved: Tensor, what: str) -> None:
    """Assert that `mine` is as close to `model` as a change of the parameters by one ulp allows."""
    scale = (moved - model).norm().item() + ULP * model.norm().item()
    assert (mine - model).norm().item() <= TIMES * scale, what


@each_model
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_logits_and_all_gradients_are_those_of_the_slow_path(name: str, training: bool, seed: int) -> None:
    *models, calls = three(name)
    found = []
    for model in models:
        model.train(training)
        result = model(tokens(seed), labels=tokens(seed), use_cache=False)
        result.loss.backward()
        found.append({"logits": result.logits.detach()} | {n: p.grad for n, p in model.named_parameters()})
    model, moved, mine = found
    in_evaluation = CONVOLUTION_AND_SCAN if name in MAMBA1 else CONVOLUTION_AND_CHUNKS
    assert set(calls) == (TRAINING.get(name, FUSED) if training else in_evaluation)
    for what, value in model.items():
        if value is None:
            assert mine[what] is None, what
        else:
            assert_as_close(mine[what], value, moved[what], what)


@each_model
def test_steps_of_training_give_the_losses_of_the_slow_path(name: str, seed: int) -> None:
    *models, _ = three(name)
    losses = []
    for model in models:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
        found = []
        for step in range(STEPS if name in TRAINED else 3):
            optimizer.zero_grad()
            ids = tokens(seed + step, time=12)
            loss = model(ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        losses.append(torch.stack(found))
    model, moved, mine = losses
    assert_as_close(mine, model, moved, "losses")


@each_model
@pytest.mark.parametrize("padded", [False, True])
def test_greedy_generation_gives_the_tokens_and_scores_of_the_slow_path(name: str, padded: bool, seed: int) -> None:
    *models, calls = three(name)
    prompt = tokens(seed, time=9)
    mask = torch.ones_like(prompt)
    mask[0, :3] = 0 if padded else 1
    options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    generated = [model.eval().generate(prompt, attention_mask=mask, **options) for model in models]
    model, moved, mine = (torch.stack(each.scores) for each in generated)
    assert torch.equal(generated[2].sequences, generated[0].sequences)
    assert_as_close(mine, model, moved, "scores")
    assert calls.keys() >= UPDATES


@pytest.mark.parametrize(
    ("training", "padding"), [(True, slice(-6, None)), (False, slice(6))], ids=["right in training", "left"]
)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in MAMBA1])
def test_padding_changes_no_text(name: str, training: bool, padding: slice, seed: int) -> None:
    *models, _ = three(name)
    ids = tokens(seed)
    mask = torch.ones_like(ids)
    mask[0, padding] = 0
    found = []
    for model in models:
        with torch.no_grad():
            for what, parameter in model.named_parameters():
                if what.endswith("conv1d.bias"):
                    parameter.fill_(0.5)  # some models begin with 0, which would leave padding without a state
        found.append(model.train(training)(ids, attention_mask=mask, use_cache=False).logits[mask.bool()])
    model, moved, mine = found
    assert_as_close(mine, model, moved, "logits")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["bamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid"])
def test_packed_sequences_have_what_each_has_alone(name: str, training: bool, seed: int) -> None:
    mine, _ = ours(name, attn_implementation=register())
    mine.train(training)
    ids, lengths = tokens(seed, batch=1), [8, 13]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    numbers = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))[None].int()
    together = mine(ids, position_ids=positions, seq_idx=numbers, use_cache=False).logits
    for part, length in zip(together.split(lengths, 1), lengths, strict=True):
        own = ids[:, :length] if length == lengths[0] else ids[:, -length:]
        torch.testing.assert_close(part, mine(own, use_cache=False).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_packed_sequences_are_kept_apart_in_the_layers_of_mamba_2(training: bool, seed: int) -> None:
    """Its model for language drops seq_idx; the layers take it."""
    mine = ours("mamba2")[0].backbone.train(training)
    ids, lengths = tokens(seed, batch=1), [8, 13]
    numbers = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))[None].int()
    together = mine(ids, seq_idx=numbers, use_cache=False).last_hidden_state
    for part, own in zip(together.split(lengths, 1), ids.split(lengths, 1), strict=True):
        torch.testing.assert_close(part, mine(own, use_cache=False).last_hidden_state, rtol=1e-4, atol=1e-5)


@each_model
def test_a_model_in_bfloat16_trains_and_generates(name: str, seed: int) -> None:
    mine, _ = ours(name)
    mine.bfloat16().train()
    ids = tokens(seed)
    loss = mine(ids, labels=ids, use_cache=False).loss
    loss.backward()
    # With random weights the loss is near that of a uniform guess, and every gradient is finite.
    assert abs(loss.item() - torch.tensor(VOCABULARY).log().item()) < 1
    assert all(p.grad is None or p.grad.isfinite().all() for p in mine.parameters())
    assert mine.eval().generate(ids, max_new_tokens=3, do_sample=False).shape == (2, 24)


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable")  # a name that the first releases lack
@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_activation_checkpointing_changes_no_bit(name: str, seed: int) -> None:
    found = []
    for checkpointing in (False, True):
        mine, _ = ours(name)
        if checkpointing:
            mine.gradient_checkpointing_enable()
        mine.train()
        mine(tokens(seed), labels=tokens(seed)).loss.backward()
        found.append([p.grad for p in mine.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


INSTALLED = """
import retrograd.compat
retrograd.compat.install()
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM
size = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "eos_token_id": None}
second = Mamba2ForCausalLM(Mamba2Config(**size, state_size=8, head_dim=8, num_heads=8, n_groups=2))
ids = torch.arange(8)[None]
for model in (MambaForCausalLM(MambaConfig(**size)), second):
    model.train()(ids, labels=ids).loss.backward()
    model.eval().generate(ids, max_new_tokens=2, do_sample=False)
compiled = torch.compile(second.train(), backend="aot_eager", fullgraph=True)
torch.testing.assert_close(compiled(ids, use_cache=False).logits, second(ids, use_cache=False).logits)
"""


def test_install_before_the_model_is_imported_is_all_that_a_user_does() -> None:
    run = subprocess.run([sys.executable, "-c", INSTALLED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "falling back" not in run.stderr
