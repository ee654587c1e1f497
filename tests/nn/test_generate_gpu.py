"""Generation on a GPU: steps are replays of a CUDA graph, and exact models have the bits of training."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from retrograd.nn import AttentionConfig, LanguageModel, Mamba2Config, MambaConfig, generate, read_back, score

pytestmark = pytest.mark.gpu
SIZES = MambaConfig(d_model=256, n_layer=3, vocab_size=509)  # odd, as GPT-2's is: rows of logits begin anywhere
ATTENTION = AttentionConfig(4, 2, rotary_emb_dim=32)
CONFIGS = {
    "mamba": SIZES,
    "mamba2": replace(SIZES, ssm_cfg=Mamba2Config()),
    "transformer": replace(SIZES, attn_layer_idx=(0, 1, 2), attn_cfg=ATTENTION, d_intermediate=512),
    "hybrid": replace(
        SIZES, ssm_cfg=Mamba2Config(), attn_layer_idx=(1,), attn_cfg=replace(ATTENTION, d_conv=4, qk_norm=True)
    ),
}
each_model = pytest.mark.parametrize("name", CONFIGS)
LENGTHS = (5, 300, 1, 37, 128, 127, 64)


def model(name: str, dtype: torch.dtype = torch.bfloat16, *, exact: bool | None = True) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(CONFIGS[name], exact=exact, device="cuda").to(dtype)


def tokens(batch: int, time: int) -> Tensor:
    return torch.randint(SIZES.vocab_size, (batch, time), device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("batch", [1, 7])
@each_model
def test_what_is_drawn_has_the_log_probabilities_of_training(name: str, batch: int, dtype: torch.dtype) -> None:
    by_default = dtype == torch.bfloat16 and torch.cuda.get_device_capability() == (9, 0)
    ours, prompt = model(name, dtype, exact=None if by_default else True), tokens(batch, 5)
    draws = generate(ours, prompt, 256, temperature=0.8, seed=1, log_probabilities=True)
    drawn, found = (torch.stack(each, 1) for each in zip(*draws, strict=True))
    expected = score(ours, torch.cat((prompt, drawn), 1), temperature=0.8)[:, 4:]
    assert (expected - found).abs().max() == 0


@each_model
def test_a_row_draws_alone_what_it_draws_beside_prompts_of_other_lengths(name: str) -> None:
    ours, prompts = model(name), [tokens(1, length)[0] for length in LENGTHS]
    together = torch.stack(list(generate(ours, prompts, 20, seed=3)), 1)
    for row, prompt in enumerate(prompts):
        assert torch.equal(torch.stack(list(generate(ours, prompt[None], 20, seed=3 + row)), 1)[0], together[row])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("exact", [False, True])
@each_model
@torch.no_grad()
def test_a_replayed_step_takes_the_tokens_of_ordinary_steps(name: str, exact: bool, autocast: bool) -> None:
    ours, prompt = model(name, torch.float32, exact=exact), tokens(3, 9)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        generated = torch.stack(list(generate(ours, prompt, 12, temperature=0.0)), 1)
        logits, state = ours(prompt, ours.initial_state(3, capacity=30))
        logits = logits[:, -1]
        for t in range(12):
            taken = logits[:, : SIZES.vocab_size].argmax(-1)
            assert torch.equal(generated[:, t], taken), t
            logits, state = ours.step(taken, state)


def test_new_room_of_a_state_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, prompt = model("hybrid"), tokens(2, 5)
    expected = list(generate(ours, prompt, 40, seed=1))
    monkeypatch.setattr(import_module("retrograd.nn.generate"), "ROOM", 3)
    assert all(torch.equal(a, b) for a, b in zip(generate(ours, prompt, 40, seed=1), expected, strict=True))


@each_model
def test_nothing_waits_for_the_gpu(name: str) -> None:
    drawn = generate(model(name), tokens(2, 5), 20, top_k=50, top_p=0.9, seed=1, log_probabilities=True)
    for _ in range(3):  # the check of the first logits, what is compiled at the first step, the capture
        next(drawn)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rest = [tokens for tokens, _ in drawn]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(rest) == 17


def test_values_are_those_of_the_tokens() -> None:
    ours, prompt = model("mamba"), tokens(3, 5)
    expected = [step.tolist() for step in generate(ours, prompt, 30, seed=1)]
    assert list(read_back(generate(ours, prompt, 30, seed=1))) == expected


@each_model
@torch.no_grad()
def test_weights_may_change_in_place_between_tokens(name: str) -> None:
    """Kernels of a captured step read weights early: a change just before it, by an ordinary kernel, must be seen."""
    ours, prompt = model(name), tokens(1, 5)
    parameters: list[Tensor] = list(ours.parameters())
    others = [[p + 0.02 * torch.randn_like(p) for p in parameters] for _ in range(2)]
    drawn = generate(ours, prompt, 300, temperature=0.0)
    text = [prompt[0], next(drawn)]
    _, state = ours(prompt, ours.initial_state(1, capacity=400))
    for number in range(1, 300):
        torch._foreach_copy_(parameters, others[number % 2])
        text.append(next(drawn))
        logits, state = ours.step(text[-2], state)
        assert torch.equal(logits[:, : SIZES.vocab_size].argmax(-1), text[-1]), number


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_model_need_not_be_on_the_current_device() -> None:
    ours, prompt = model("hybrid"), tokens(2, 5)
    expected = list(read_back(generate(ours, prompt, 20, seed=1, stop=0)))
    with torch.cuda.device(0):
        found = list(read_back(generate(ours.to("cuda:1"), prompt.to("cuda:1"), 20, seed=1, stop=0)))
    assert found == expected
