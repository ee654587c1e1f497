"""`attn_implementation="retrograd"`: models of transformers compute what they compute with their own attention."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from compat_models import TOKENS
from torch import Tensor

transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")

from attention_models import (  # noqa: E402
    BASE,
    HOLES,
    LEFT,
    MODELS,
    PACKED,
    RIGHT,
    STEPS,
    answer,
    drawn,
    mask_with,
    model_of,
)
from transformers.masking_utils import and_masks, causal_mask_function, create_causal_mask  # noqa: E402

from retrograd.compat.transformers import register  # noqa: E402
from retrograd.compat.transformers.masks import Mask, mask_of  # noqa: E402

# Two orders of the same sums in float32, in two layers.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("lengths", [None, LEFT, RIGHT, HOLES], ids=["whole", "left", "right", "holes"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_eager_attention(name: str, lengths: list[int] | None, seed: int) -> None:
    ids, mask = drawn(seed), None if lengths is None else mask_with(lengths)
    expected = answer(model_of(name, "eager"), ids, mask)
    torch.testing.assert_close(answer(model_of(name, "retrograd"), ids, mask), expected, **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_packed_sequences_have_what_each_has_alone(name: str, seed: int) -> None:
    # transformers' own masks of GPT-OSS do not tell packed sequences apart.
    ids, model = drawn(seed), model_of(name, "retrograd")
    positions = torch.tensor([PACKED])
    together = model(ids, position_ids=positions, use_cache=False).logits
    second = PACKED.index(0, 1)
    for part in (slice(second), slice(second, None)):
        alone = model(ids[:, part], use_cache=False).logits
        torch.testing.assert_close(together[:, part], alone, **CLOSE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_generation_after_padding_is_that_of_eager_attention(name: str, cache: str, seed: int) -> None:
    def generated(implementation: str) -> Tensor:
        options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
        model = model_of(name, implementation)
        tokens: Tensor = model.generate(drawn(seed), attention_mask=mask_with(LEFT), **options)
        return tokens

    assert torch.equal(generated("retrograd"), generated("eager"))


EACH = list(product(("Llama", "Mistral", "GptOss"), ("nothing", "mask", "positions")))
QUICK = [("Mistral", "mask")]


@pytest.mark.parametrize(
    ("name", "given"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in EACH if each not in QUICK)]
)
def test_a_model_compiles_whole(name: str, given: str, seed: int) -> None:
    torch._dynamo.reset()
    model, ids = model_of(name, "retrograd"), drawn(seed)
    more: dict[str, Any] = {
        "nothing": {},
        "mask": {"attention_mask": mask_with(LEFT)},
        "positions": {"position_ids": torch.tensor([PACKED, PACKED])},
    }[given]

    def logits(ids: Tensor) -> Tensor:
        found: Tensor = model(ids, use_cache=False, **more).logits
        return found[more["attention_mask"].bool()] if "attention_mask" in more else found

    compiled = torch.compile(logits, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), logits(ids), **CLOSE)


def test_t5_has_its_position_bias_with_its_gradient_and_its_cross_attention(seed: int) -> None:
    ids, labels, mask = drawn(seed), drawn(seed + 1, 7), mask_with(RIGHT)

    def found(implementation: str) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        torch.manual_seed(0)
        config = transformers.T5Config(
            **TOKENS | {"decoder_start_token_id": 0, "dropout_rate": 0.0},
            d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        )  # fmt: skip
        kind = transformers.T5ForConditionalGeneration
        model = kind._from_config(config, attn_implementation=implementation).eval()
        result = model(input_ids=ids, attention_mask=mask, labels=labels)
        result.loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        assert gradients["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"].any()
        tokens = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
        return result.logits.detach(), gradients, tokens

    torch.testing.assert_close(found("retrograd"), found("eager"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "ModernBert"])
def test_an_encoder_with_padding_is_that_of_eager_attention(name: str, seed: int) -> None:
    ids, mask = drawn(seed), mask_with(RIGHT)
    local = {"local_attention": 4, "global_attn_every_n_layers": 2} if name == "ModernBert" else {}

    def found(implementation: str) -> Tensor:
        torch.manual_seed(0)
        sizes = {name: size for name, size in BASE.items() if name != "num_key_value_heads"}
        config = getattr(transformers, f"{name}Config")(**TOKENS | sizes | local)
        model = getattr(transformers, f"{name}ForMaskedLM")._from_config(config, attn_implementation=implementation)
        logits: Tensor = model.eval()(input_ids=ids, attention_mask=mask).logits
        return logits[mask.bool()]

    torch.testing.assert_close(found("retrograd"), found("eager"), **CLOSE)


def test_a_mask_of_four_axes_is_added_or_says_what_is_seen(seed: int) -> None:
    model, ids = model_of("Llama", "retrograd"), drawn(seed)
    sees = torch.ones(STEPS, STEPS, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    added = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
    expected = model(ids).logits
    for mask in (sees, added):
        torch.testing.assert_close(model(ids, attention_mask=mask).logits, expected, **CLOSE)


def test_boundaries_of_packed_sequences_are_taken(seed: int) -> None:
    model, ids = model_of("Llama", "retrograd"), drawn(seed)[:1]
    ends = torch.tensor([0, 5, STEPS], dtype=torch.int32)
    lengths = {"max_length_q": 7, "max_length_k": 7}
    found = model(ids, position_ids=torch.tensor([PACKED]), cu_seq_lens_q=ends, cu_seq_lens_k=ends, **lengths).logits
    torch.testing.assert_close(found[:, 5:], model(ids[:, 5:]).logits, **CLOSE)


def test_a_checkpointed_layer_drops_the_same_probabilities_again(seed: int) -> None:
    model, ids = model_of("Llama", "retrograd", attention_dropout=0.3).train(), drawn(seed)

    def gradients() -> list[Tensor]:
        torch.manual_seed(seed)
        return list(answer(model, ids)[1].values())

    plain = gradients()
    assert not all(map(torch.equal, plain, answer(model.eval(), ids)[1].values()))
    model.train().gradient_checkpointing_enable()
    assert all(map(torch.equal, gradients(), plain))


def test_autocast_and_16_bits_are_taken(seed: int) -> None:
    model, ids = model_of("GptOss", "retrograd"), drawn(seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(ids, attention_mask=mask_with(HOLES), use_cache=False).logits.isfinite().all()
    assert model.bfloat16()(ids, attention_mask=mask_with(HOLES), use_cache=False).logits.dtype == torch.bfloat16


def test_what_would_be_ignored_is_refused_by_name(seed: int) -> None:
    model = model_of("Llama", "retrograd")
    with pytest.raises(NotImplementedError, match=r"^attention: output_attentions is not supported by attn_impl"):
        model(drawn(seed), output_attentions=True)
    layer = model.model.layers[0].self_attn
    q = torch.zeros(1, 2, 3, 8)
    attend = transformers.AttentionInterface()["retrograd"]
    for name in ("block_table", "indices", "block_indices"):
        with pytest.raises(NotImplementedError, match=f"^attention: {name} is not supported"):
            attend(layer, q, q, q, None, **{name: torch.zeros(1)})
    with pytest.raises(ValueError, match=r"^attention: attention_mask has shape \(1, 3, 3\), expected \(batch, keys\)"):
        attend(layer, q, q, q, torch.zeros(1, 3, 3))
    with pytest.raises(TypeError, match=r"^attention: attention_mask is list, expected a mask of transformers"):
        attend(layer, q, q, q, [1])


def test_masks_are_arrays_only_where_they_must_be() -> None:
    config = transformers.LlamaConfig(**TOKENS | BASE)
    config._attn_implementation = register()
    embeds = torch.zeros(2, STEPS, 32)

    def made(**more: Any) -> Any:
        return create_causal_mask(config, embeds, **{"attention_mask": None, "cache": None} | more)

    assert made() == Mask(causal=True, unpadded=True)
    assert made(attention_mask=torch.ones(2, STEPS)) == Mask(causal=True)
    left = made(attention_mask=mask_with(LEFT))
    assert left.bias is None
    assert left.segment_ids.tolist()[0] == [-1] * 3 + [0] * 9
    assert made(attention_mask=mask_with(HOLES)).bias.shape == (2, 1, 1, STEPS)
    packed = made(position_ids=torch.tensor([PACKED]))
    assert packed.segment_ids.tolist()[0] == [0] * 5 + [1] * 7


def test_an_unknown_mask_is_a_dense_one() -> None:
    def even(row: Any, head: Any, q: Any, key: Any) -> Any:
        return key % 2 == 0

    sees = and_masks(causal_mask_function, even)
    bias = mask_of(1, 4, 4, mask_function=sees, allow_is_causal_skip=False, use_vmap=True)
    seen = [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]]
    assert isinstance(bias, Tensor)
    assert (bias[0, 0] == 0).int().tolist() == seen


@pytest.mark.parametrize("padded", [False, True])
def test_tokens_of_an_image_see_one_another(padded: bool) -> None:
    config = transformers.LlamaConfig(**TOKENS | BASE)
    blocks = torch.tensor([[-1, -1, 0, 0, 0, -1]])
    given: dict[str, Any] = {"attention_mask": torch.ones(1, 6) if padded else None, "block_sequence_ids": blocks}
    found = {}
    for name in ("sdpa", register()):
        config._attn_implementation = name
        found[name] = create_causal_mask(config, torch.zeros(1, 6, 32), cache=None, **given)
    assert torch.equal(found["retrograd"] == 0, found["sdpa"])
