"""`attn_implementation="retrograd"` on a GPU: results within rounding of eager attention's, gradients reproducible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the package transformers is not installed")

from attention_models import HOLES, LEFT, MODELS, PACKED, RIGHT, answer, drawn, mask_with, model_of

pytestmark = pytest.mark.gpu
# Sums of products in float32 by three products of tf32, in two layers.
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-5}
LONG = 150  # several tiles of the kernels


@pytest.mark.parametrize("lengths", [None, LEFT, RIGHT, HOLES], ids=["whole", "left", "right", "holes"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_eager_attention(name: str, lengths: list[int] | None, seed: int) -> None:
    ids, mask = drawn(seed).cuda(), None if lengths is None else mask_with(lengths).cuda()
    expected = answer(model_of(name, "eager").cuda(), ids, mask)
    torch.testing.assert_close(answer(model_of(name, "retrograd").cuda(), ids, mask), expected, **CLOSE)


# transformers 5.17 counts Llama 4's chunks from the start of a row, whatever its sequences.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "Llama4"])
def test_packed_sequences_have_what_each_has_alone(name: str, seed: int) -> None:
    ids, model = drawn(seed).cuda(), model_of(name, "retrograd").cuda()
    together = model(ids, position_ids=torch.tensor([PACKED]).cuda(), use_cache=False).logits
    second = PACKED.index(0, 1)
    for part in (slice(second), slice(second, None)):
        torch.testing.assert_close(together[:, part], model(ids[:, part], use_cache=False).logits, **CLOSE)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen3", "Gemma2"])
def test_in_bfloat16_the_error_is_at_most_twice_that_of_eager_attention(name: str, seed: int) -> None:
    ids = drawn(seed, LONG).cuda()

    def logits(implementation: str, dtype: torch.dtype) -> Tensor:
        options = {"head_dim": 64, "max_position_embeddings": LONG}
        found: Tensor = model_of(name, implementation, **options).to("cuda", dtype)(ids, use_cache=False).logits
        return found.detach().double()

    exact = logits("eager", torch.float32)
    allowed = 2 * (logits("eager", torch.bfloat16) - exact).norm()
    assert (logits("retrograd", torch.bfloat16) - exact).norm() <= allowed


@pytest.mark.parametrize("name", ["Llama", "Mistral", "GptOss"])
def test_two_runs_have_the_same_gradients_to_the_bit(name: str, seed: int) -> None:
    model, ids = model_of(name, "retrograd", max_position_embeddings=LONG).bfloat16().cuda(), drawn(seed, LONG).cuda()
    first, second = (answer(model, ids)[1] for _ in range(2))
    attention = [what for what in first if "attn" in what]
    assert attention
    assert all(torch.equal(first[what], second[what]) for what in attention)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma3", "GptOss"])
def test_greedy_generation_after_padding_is_that_of_eager_attention(name: str, cache: str, seed: int) -> None:
    def generated(implementation: str) -> Tensor:
        options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
        model, mask = model_of(name, implementation).cuda(), mask_with(LEFT).cuda()
        tokens: Tensor = model.generate(drawn(seed).cuda(), attention_mask=mask, **options)
        return tokens

    assert torch.equal(generated("retrograd"), generated("eager"))
