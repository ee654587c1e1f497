"""A patched model of Mamba's or Mamba-2's family keeps packed texts and padding apart in every layer."""

from __future__ import annotations

import copy
import inspect
import io
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from compat_models import MODELS, VOCABULARY, ours, slow
from torch import Tensor, nn

pytest.importorskip("transformers", reason="the package transformers is not installed")

from transformers import DynamicCache

from retrograd.compat.transformers import RMSNorm, packing, patch, register, unpatch

LENGTHS = (8, 13)
TIME = sum(LENGTHS)
# Two float32 computations that round at different points differ by some tens of units of 2^-24 in every layer.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
each_model = pytest.mark.parametrize("name", MODELS)
each_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def tokens(seed: int, batch: int = 1) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, TIME), generator=torch.Generator().manual_seed(seed))


def patched(name: str, training: bool = True) -> Any:
    model, _ = ours(name, attn_implementation=register())
    with torch.no_grad():
        for what, parameter in model.named_parameters():
            if what.endswith("conv1d.bias"):
                parameter.fill_(0.5)  # some models begin with 0, which would leave padding without a state
    return patch(model).train(training)


def texts_by(how: str) -> dict[str, Tensor]:
    """The arguments by which callers tell transformers of two packed texts."""
    lengths = torch.tensor(LENGTHS)
    bounds = torch.tensor([0, *lengths.cumsum(0)], dtype=torch.int32)
    return {
        "position_ids": {"position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None]},
        "seq_idx": {"seq_idx": torch.repeat_interleave(torch.arange(2), lengths)[None].int()},
        "cu_seq_lens": {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds},
    }[how]


def cache_of(model: Any) -> str:
    """The argument that takes a model's cache."""
    return next(name for name in packing.CACHES if name in inspect.signature(model.forward).parameters)


def gradients(model: Any, *losses: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad()
    sum(losses, torch.zeros(())).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@each_model
@each_mode
@pytest.mark.parametrize("how", ["position_ids", "seq_idx", "cu_seq_lens"])
def test_packed_texts_have_the_logits_and_gradients_that_each_has_alone(
    name: str, training: bool, how: str, seed: int
) -> None:
    model = patched(name, training)
    parts = tokens(seed).split(LENGTHS, 1)
    weights = torch.randn(TIME, VOCABULARY, generator=torch.Generator().manual_seed(seed)).split(LENGTHS)
    together = model(tokens(seed), **texts_by(how)).logits[0].split(LENGTHS)
    alone = [model(ids, use_cache=False).logits[0] for ids in parts]
    torch.testing.assert_close(together, alone, **CLOSE)
    found, expected = (
        gradients(model, *((logits * weight).sum() for logits, weight in zip(each, weights, strict=True)))
        for each in (together, alone)
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@each_model
@each_mode
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_text(name: str, training: bool, side: str, seed: int) -> None:
    model, ids, mask = patched(name, training), tokens(seed, batch=2), torch.ones(2, TIME, dtype=torch.int64)
    text = slice(6, None) if side == "left" else slice(None, -6)
    mask[0] = 0
    mask[0, text] = 1
    logits = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, text], model(ids[:1, text]).logits[0], **CLOSE)
    torch.testing.assert_close(logits[1], model(ids[1:]).logits[0], **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "jamba", "mamba2", "bamba"])
def test_padding_beside_packed_texts_changes_neither(name: str, seed: int) -> None:
    model = patched(name)
    mask = torch.ones(1, TIME, dtype=torch.int64)
    mask[:, 5:8] = 0  # the end of the first text
    logits = model(tokens(seed), attention_mask=mask, **texts_by("seq_idx")).logits[0]
    torch.testing.assert_close(logits[:5], model(tokens(seed)[:, :5]).logits[0], **CLOSE)
    torch.testing.assert_close(logits[8:], model(tokens(seed)[:, 8:]).logits[0], **CLOSE)


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable")  # a name that the first releases lack
@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "jamba", "mamba2", "bamba"])
def test_activation_checkpointing_changes_no_bit_of_packed_texts(name: str, seed: int) -> None:
    found = []
    for checkpointing in (False, True):
        model = patched(name)
        if checkpointing:
            model.gradient_checkpointing_enable()
        first, second = (model(tokens(seed + i), **texts_by("position_ids")).logits for i in range(2))
        model(tokens(seed)).logits.sum().backward()  # another call between the forward and the backward pass
        found.append(gradients(model, first.square().sum(), second.square().sum()))
    for a, b in zip(found[0].values(), found[1].values(), strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or torch.equal(a, b)


@pytest.mark.parametrize("name", ["mamba", "jamba", "mamba2", "bamba", "nemotron_h"])
def test_generation_is_what_it_was(name: str, seed: int) -> None:
    mask = torch.ones(2, TIME, dtype=torch.int64)
    mask[0, :5] = 0
    model = patched(name, training=False)
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    after = model.generate(tokens(seed, batch=2), **options)
    assert torch.equal(after, unpatch(model).generate(tokens(seed, batch=2), **options))


@pytest.mark.parametrize("name", ["mamba", "jamba", "mamba2", "bamba"])
def test_a_patched_model_is_copied_saved_patched_again_and_restored(name: str, seed: int) -> None:
    model = patched(name)
    kinds = [type(module) for module in unpatch(model).modules()]
    assert not any(module._forward_pre_hooks for module in model.modules())
    patch(patch(model))
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    other = copy.deepcopy(model)
    other.load_state_dict(torch.load(io.BytesIO(stored.getvalue())))
    expected = model(tokens(seed), **texts_by("position_ids")).logits
    assert torch.equal(other(tokens(seed), **texts_by("position_ids")).logits, expected)
    assert [type(module) for module in unpatch(model).modules()] == kinds
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(other(tokens(seed), **texts_by("position_ids")).logits, expected)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba"])
def test_a_mask_with_gaps_is_refused_in_training(name: str, seed: int) -> None:
    mask = torch.ones(1, TIME, dtype=torch.int64)
    mask[:, 5:8] = 0
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    for given in ({}, {"position_ids": positions}, {"seq_idx": torch.zeros(1, TIME, dtype=torch.int32)}):
        with pytest.raises(ValueError, match=r"attention_mask is 'a mask with a gap within a text', expected each"):
            patched(name)(tokens(seed), attention_mask=mask, **given)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba", "jamba"])
def test_positions_that_skip_a_gap_tell_no_texts_apart_in_evaluation(name: str, seed: int) -> None:
    mask = torch.ones(1, TIME, dtype=torch.int64)
    mask[:, 5:8] = 0
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)}
    model = patched(name, training=False)
    after = model(tokens(seed), **given).logits
    torch.testing.assert_close(after, unpatch(model)(tokens(seed), **given).logits, **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba"])
def test_texts_with_padding_between_are_told_apart_by_their_positions(name: str, seed: int) -> None:
    first = LENGTHS[0]
    mask = torch.ones(1, TIME, dtype=torch.int64)
    mask[:, first - 2 : first] = 0
    logits = patched(name)(tokens(seed), attention_mask=mask, **texts_by("position_ids")).logits
    alone = patched(name)(tokens(seed)[:, first:], use_cache=False).logits
    torch.testing.assert_close(logits[:, first:], alone, **CLOSE)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_classes_that_extend_a_model_and_wrappers_that_answer_for_it_are_taken(
    name: str, wrapped: bool, seed: int
) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("model"), name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.model(*args, **kwargs)

    model, _ = ours(name)
    model.__class__ = type("Mine", (type(model),), {})
    outer = patch(Wrapper(model) if wrapped else model).train()
    parts = tokens(seed).split(LENGTHS, 1)
    for _ in range(2):
        together = outer(tokens(seed), **texts_by("position_ids")).logits[0].split(LENGTHS)
        alone = [outer(ids, use_cache=False).logits[0] for ids in parts]
        torch.testing.assert_close(together, alone, **CLOSE)
        unpatch(outer)
        assert not any(module._forward_pre_hooks for module in outer.modules())
        patch(outer)


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable")
@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba", "nemotron_h"])
def test_padding_is_kept_out_where_checkpoints_turn_a_cache_off(name: str, seed: int) -> None:
    model = patched(name)
    model.gradient_checkpointing_enable()
    mask = torch.ones(1, TIME, dtype=torch.int64)
    mask[:, :5] = 0
    logits = model(tokens(seed), attention_mask=mask, use_cache=True).logits
    torch.testing.assert_close(logits[:, 5:], model(tokens(seed)[:, 5:], use_cache=False).logits, **CLOSE)


def test_attention_that_runs_packed_texts_into_one_another_is_named(seed: int) -> None:
    model = patch(ours("bamba", attn_implementation="sdpa")[0])
    with pytest.warns(RuntimeWarning, match=r"^BambaModel: packed texts see one another in its layers of attention"):
        model(tokens(seed), **texts_by("seq_idx"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model(tokens(seed), **texts_by("position_ids"))  # from these transformers makes its mask


def test_an_adapter_in_place_of_a_projection_is_used_in_training(seed: int) -> None:
    model = patched("mamba")
    model.backbone.layers[0].mixer.x_proj = adapted = torch.nn.Sequential(model.backbone.layers[0].mixer.x_proj)
    adapted.weight = adapted[0].weight
    called: list[bool] = []
    adapted.register_forward_hook(lambda *_: called.append(True))
    model(tokens(seed), use_cache=False)
    assert called


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cu_seq_lens_q": torch.tensor(LENGTHS)}, r"cu_seq_lens_q is \[8, 13\], expected \[0, ..., 21\]"),
        ({"cu_seq_lens_q": torch.tensor([0.0, TIME])}, r"cu_seq_lens_q has dtype float32, expected int32 or int64"),
        ({"cu_seq_lens_q": [0, TIME]}, "cu_seq_lens_q is list, expected a torch.Tensor"),
        ({"position_ids": torch.arange(TIME)}, r"position_ids has shape \(21,\), expected \(batch, seqlen\)"),
        ({"position_ids": torch.arange(TIME - 1)[None]}, r"position_ids has shape \(1, 20\)"),
        ({"attention_mask": torch.ones(1, TIME + 1)}, r"attention_mask has shape \(1, 22\)"),
    ],
)
def test_malformed_texts_are_refused_by_name(given: dict[str, Any], message: str, seed: int) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^MambaForCausalLM: {message}"):
        patched("mamba")(tokens(seed), **given)


def test_numbers_of_another_shape_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"^Mamba2ForCausalLM: seq_idx has shape \(1, 20\), expected \(batch, seq"):
        patched("mamba2")(tokens(seed), seq_idx=torch.zeros(1, TIME - 1, dtype=torch.int32))


@each_model
@pytest.mark.parametrize("how", ["position_ids", "seq_idx", "cu_seq_lens"])
def test_a_cache_beside_packed_texts_is_refused(name: str, how: str, seed: int) -> None:
    model = patched(name, training=False)
    with pytest.raises(ValueError, match=r"^\w+: use_cache is True, expected False for packed texts"):
        model(tokens(seed), use_cache=True, **texts_by(how))
    cache = cache_of(model)
    with pytest.raises(ValueError, match=rf"^\w+: {cache} is 'DynamicCache', expected None for packed texts"):
        model(tokens(seed), **{cache: DynamicCache(config=model.config)}, **texts_by(how))


@pytest.mark.parametrize("name", ["mamba2", "bamba"])
def test_one_text_in_each_row_goes_on_from_its_cache(name: str, seed: int) -> None:
    model, ids = patched(name, training=False), tokens(seed, batch=2)
    first, numbers = ids[:, :-1], torch.tensor([[3], [4]]).expand(2, TIME - 1).int()
    whole = model(ids, use_cache=False).logits
    mask = torch.ones_like(ids)
    begun = model(first, use_cache=True, seq_idx=numbers, attention_mask=mask[:, :-1])
    cache, positions = cache_of(model), torch.full((2, 1), TIME - 1)
    found = model(ids[:, -1:], use_cache=True, attention_mask=mask, position_ids=positions, **{cache: begun[cache]})
    torch.testing.assert_close(torch.cat([begun.logits, found.logits], 1), whole, **CLOSE)


def test_a_cache_beside_packed_texts_stops_a_compiled_model(seed: int) -> None:
    compiled = torch.compile(patched("mamba2", training=False), backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"^retrograd: \w+: use_cache is True, expected False for packed texts"):
        compiled(tokens(seed), use_cache=True, **texts_by("position_ids"))


class Offloading:
    """A hook of accelerate, without the package: the weights of a module are elsewhere but in its call."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = dict(module.named_parameters(recurse=False))
        self.post_forward(module)

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        module._parameters.update(self.weights)

    def post_forward(self, module: nn.Module, output: Any = None) -> None:
        module._parameters.update({name: nn.Parameter(weight.to("meta")) for name, weight in self.weights.items()})


def offloaded(model: Any) -> Any:
    def attach(module: Any) -> None:
        hook, forward = Offloading(module), module.forward

        def hooked(*args: Any, **kwargs: Any) -> Any:
            hook.pre_forward(module)
            output = forward(*args, **kwargs)
            hook.post_forward(module, output)
            return output

        module._hf_hook, module._old_forward, module.forward = hook, forward, hooked

    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            attach(module)
    return model


def taken_back(model: Any) -> Any:
    """A model without the hooks, as accelerate leaves it: modules have the forward of their class as their own."""
    for module in model.modules():
        if hasattr(module, "_hf_hook"):
            module._hf_hook.pre_forward(module)
            module.forward = module._old_forward
            del module._hf_hook, module._old_forward
    return model


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "jamba", "mamba2", "bamba"])
@torch.no_grad()
def test_a_patched_model_whose_weights_are_offloaded_computes_the_same(name: str, seed: int) -> None:
    model = patched(name, training=False)
    given: tuple[dict[str, Tensor], ...] = ({}, texts_by("position_ids"))
    expected = [model(tokens(seed), **each).logits for each in given]
    offloaded(model)
    assert all(torch.equal(model(tokens(seed), **each).logits, a) for each, a in zip(given, expected, strict=True))
    with pytest.raises(ValueError, match=r"^unpatch: forward of [\w.]+ is replaced, expected that of its class"):
        unpatch(model)
    assert torch.equal(model(tokens(seed), **given[1]).logits, expected[1])
    unpatch(taken_back(model))
    assert not any(isinstance(module, RMSNorm) for module in model.modules())
    torch.testing.assert_close(model(tokens(seed)).logits, expected[0], **CLOSE)


@torch.no_grad()
def test_norms_that_stay_beside_scans_that_do_not_are_named(seed: int) -> None:
    model = offloaded(ours("bamba", attn_implementation=register())[0].eval())
    with pytest.warns(RuntimeWarning, match=r"^patch left as they are: BambaRMSNorm .* patch the model before"):
        patch(model)
    together = model(tokens(seed), **texts_by("position_ids")).logits.split(LENGTHS, 1)
    alone = [model(ids, use_cache=False).logits for ids in tokens(seed).split(LENGTHS, 1)]
    torch.testing.assert_close(list(together), alone, **CLOSE)


def test_layers_of_mamba_2_on_other_functions_are_left_as_they_are(seed: int) -> None:
    model = slow("mamba2").train()
    expected = model(tokens(seed), **texts_by("seq_idx")).logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        patch(model)
    assert not any(module._forward_pre_hooks for module in model.modules())
    torch.testing.assert_close(model(tokens(seed), **texts_by("seq_idx")).logits, expected, **CLOSE)


COMPILED = """
import sys
import retrograd.compat
retrograd.compat.install()
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM
from retrograd.compat.transformers import patch
size = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "eos_token_id": None}
second = Mamba2ForCausalLM(Mamba2Config(**size, state_size=8, head_dim=8, num_heads=8, n_groups=2))
ids = torch.arange(8)[None]
device = sys.argv[1]
ids = ids.to(device)

def backend(graph, inputs):
    parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
    calls = {str(node.target) for part in parts for node in part.graph.nodes}
    assert f"retrograd.{scan}" in calls and "retrograd.causal_conv1d" in calls, calls
    return graph

for model, scan in ((MambaForCausalLM(MambaConfig(**size)), "selective_scan"), (second, "ssd")):
    model = patch(model.to(device)).train()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
if device == "cuda":
    torch.compile(model, fullgraph=True)(ids, use_cache=False).logits.sum().backward()
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_patched_model_compiles_as_a_whole_without_a_mask_and_on_our_kernels(device: str) -> None:
    """In a process of its own: models of these tests count calls, which does not compile."""
    run = subprocess.run([sys.executable, "-c", COMPILED, device], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_packed_texts_compile_in_several_graphs(name: str, seed: int) -> None:
    model = patched(name)
    expected = model(tokens(seed), **texts_by("seq_idx")).logits
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens(seed), **texts_by("seq_idx")).logits, expected, **CLOSE)


def test_scans_whose_texts_stay_together_are_named_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch(ours("zamba")[0])
    stays = "patch does not keep packed texts apart in the scans of ZambaMambaMixer: pass one text in each row"
    assert [(str(each.message), each.filename) for each in caught] == [(stays, __file__)]
