"""The stand-ins for mamba_ssm's layers and language model: its calls, its names, its states of generation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import compat_plain as plain
import pytest
import torch
import torch.nn.functional as F
from compat_calls import close
from torch import Tensor, nn

import retrograd.nn
from retrograd.compat.causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from retrograd.compat.mamba_ssm import Mamba, Mamba2, MambaLMHeadModel
from retrograd.compat.mamba_ssm.models.config_mamba import MambaConfig
from retrograd.compat.mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined
from retrograd.compat.mamba_ssm.utils.generation import GenerationMixin, InferenceParams

D, STEPS, BATCH, VOCABULARY = 16, 11, 2, 50
MAMBA2: dict[str, Any] = {"d_state": 4, "headdim": 8, "ngroups": 2}
SSM: dict[str, dict[str, Any]] = {"Mamba1": {"d_state": 4}, "Mamba2": MAMBA2}
RUNS = [[3, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0], [5] * 7 + [-1] * 4]  # the numbers of seq_idx


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(name: str, **settings: Any) -> Any:
    """A layer in float64."""
    kind = Mamba if name == "Mamba1" else Mamba2
    return kind(D, **SSM[name], layer_idx=0, **settings).double()


def model(name: str = "Mamba2", **settings: Any) -> MambaLMHeadModel:
    torch.manual_seed(0)
    config: dict[str, Any] = {
        "d_model": D,
        "n_layer": 2,
        "vocab_size": VOCABULARY,
        "ssm_cfg": {"layer": name, **SSM[name]},
    }
    return MambaLMHeadModel(MambaConfig(**(config | settings))).double()


def hybrid(name: str = "Mamba2") -> MambaLMHeadModel:
    return model(name, n_layer=3, attn_layer_idx=[1], attn_cfg={"num_heads": 2}, d_intermediate=16)


def tokens(seed: int, length: int = STEPS) -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


each_kind = pytest.mark.parametrize("name", SSM)


def test_a_layer_of_mamba_1_is_its_parts(seed: int) -> None:
    mine, u = layer("Mamba1"), randn(seed, BATCH, STEPS, D)
    expected = plain.mamba_inner(
        mine.in_proj(u).mT,
        mine.conv1d.weight,
        mine.conv1d.bias,
        mine.x_proj.weight,
        mine.dt_proj.weight,
        mine.out_proj.weight,
        None,
        -mine.A_log.exp(),
        D=mine.D,
        delta_bias=mine.dt_proj.bias,
    )
    close(mine(u), expected)


@pytest.mark.parametrize(
    "settings",
    [{}, {"D_has_hdim": True, "rmsnorm": False}, {"d_ssm": 16, "norm_before_gate": True, "dt_limit": (0.01, 0.05)}],
    ids=lambda settings: "-".join(settings) or "default",
)
def test_a_layer_of_mamba_2_is_its_parts(seed: int, settings: dict[str, Any]) -> None:
    mine, u = layer("Mamba2", **settings), randn(seed, BATCH, STEPS, D)
    expected = mamba_split_conv1d_scan_combined(
        mine.in_proj(u),
        mine.conv1d.weight.squeeze(1),
        mine.conv1d.bias,
        mine.dt_bias,
        -mine.A_log.exp(),
        mine.D.view(-1, 8) if settings.get("D_has_hdim") else mine.D,
        chunk_size=4,
        dt_limit=settings.get("dt_limit", (0.0, float("inf"))),
        rmsnorm_weight=None if mine.norm is None else mine.norm.weight,
        rmsnorm_eps=1e-5,
        outproj_weight=mine.out_proj.weight,
        headdim=8,
        ngroups=2,
        norm_before_gate=settings.get("norm_before_gate", False),
    )
    close(mine(u), expected)


PARAMETERS = {
    "Mamba1": {"A_log", "D", "conv1d.weight", "conv1d.bias", "dt_proj.weight", "dt_proj.bias"}
    | {"in_proj.weight", "out_proj.weight", "x_proj.weight"},
    "Mamba2": {"A_log", "D", "conv1d.weight", "conv1d.bias", "dt_bias", "in_proj.weight", "norm.weight"}
    | {"out_proj.weight"},
}


@each_kind
def test_parameters_have_the_names_and_the_marks_that_training_code_reads(name: str) -> None:
    mine = layer(name)
    assert {what for what, _ in mine.named_parameters()} == PARAMETERS[name]
    unregularised = {what for what, p in mine.named_parameters() if getattr(p, "_no_weight_decay", False)}
    assert unregularised == {"A_log", "D"} | ({"dt_bias"} if name == "Mamba2" else set())


ARGUMENTS: dict[Callable[..., Any], str] = {
    Mamba: "d_model d_state d_conv expand dt_rank dt_min dt_max dt_init dt_scale dt_init_floor conv_bias bias "
    "use_fast_path layer_idx device dtype",
    Mamba2: "d_model d_state d_conv conv_init expand headdim d_ssm ngroups A_init_range D_has_hdim rmsnorm "
    "norm_before_gate dt_min dt_max dt_init_floor dt_limit bias conv_bias chunk_size use_mem_eff_path layer_idx "
    "process_group sequence_parallel device dtype",
    Mamba.forward: "self hidden_states inference_params",
    Mamba2.forward: "self u seqlen seq_idx cu_seqlens inference_params",
    Mamba2.step: "self hidden_states conv_state ssm_state",
    MambaLMHeadModel: "config initializer_cfg device dtype",
    MambaConfig: "d_model d_intermediate n_layer vocab_size ssm_cfg attn_layer_idx attn_cfg rms_norm residual_in_fp32 "
    "fused_add_norm pad_vocab_size_multiple tie_embeddings",
    InferenceParams: "max_seqlen max_batch_size seqlen_offset batch_size_offset key_value_memory_dict "
    "lengths_per_sample",
    causal_conv1d_varlen_states: "x cu_seqlens state_len",
}


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__qualname__)
def test_arguments_have_the_names_and_the_order_of_mamba_ssm(function: Callable[..., Any]) -> None:
    assert " ".join(inspect.signature(function).parameters) == ARGUMENTS[function]


@each_kind
def test_a_layer_goes_on_from_the_states_of_a_prompt_which_it_writes_in_place(name: str, seed: int) -> None:
    mine, u = layer(name), randn(seed, BATCH, STEPS, D)
    kept = InferenceParams(STEPS, BATCH)
    found = [mine(u[:, :7], inference_params=kept)]
    conv_state, ssm_state = kept.key_value_memory_dict[0]
    for step in range(7, STEPS):
        kept.seqlen_offset = step
        found.append(mine(u[:, step : step + 1], inference_params=kept))
    close(torch.cat(found, 1), mine(u))
    assert kept.key_value_memory_dict[0][0] is conv_state
    assert kept.key_value_memory_dict[0][1] is ssm_state
    again = InferenceParams(STEPS, BATCH)
    mine(u, inference_params=again)
    close((conv_state, ssm_state), again.key_value_memory_dict[0])


@each_kind
def test_states_may_be_made_before_and_have_16_bits(name: str, seed: int) -> None:
    mine, u = layer(name).float(), randn(seed, BATCH, 1, D).float()
    conv_state, ssm_state = mine.allocate_inference_cache(BATCH, STEPS)
    assert conv_state.shape[2] == 4
    assert ssm_state.dtype == torch.float32
    halves = mine.allocate_inference_cache(BATCH, STEPS, dtype=torch.bfloat16)
    assert {each.dtype for each in halves} == {torch.bfloat16}
    assert not mine.step(u, *halves)[0].requires_grad
    exact = mine.step(u, conv_state, ssm_state)[0]
    torch.testing.assert_close(mine.step(u, *mine.allocate_inference_cache(BATCH, 1, torch.bfloat16))[0], exact)
    torch.testing.assert_close(halves[1].float(), ssm_state, rtol=2**-8, atol=0)


def test_packed_prompts_have_a_state_each(seed: int) -> None:
    mine, u = layer("Mamba2"), randn(seed, 1, STEPS, D)
    bounds, packed = torch.tensor([0, 2, STEPS], dtype=torch.int32), InferenceParams(STEPS, 2)
    numbers = torch.tensor([[7] * 2 + [8] * (STEPS - 2)])
    out = mine(u, seq_idx=numbers, cu_seqlens=bounds, inference_params=packed)
    for row, part in enumerate((u[:, :2], u[:, 2:])):
        alone = InferenceParams(STEPS, 1)
        close(out[:, :2] if row == 0 else out[:, 2:], mine(part, inference_params=alone))
        for both, own in zip(packed.key_value_memory_dict[0], alone.key_value_memory_dict[0], strict=True):
            close(both[row : row + 1], own)


def test_a_layer_keeps_sequences_apart_and_returns_0_at_padding(seed: int) -> None:
    mine, u = layer("Mamba2"), randn(seed, BATCH, STEPS, D)
    out = mine(u, seq_idx=torch.tensor(RUNS))
    for row, begin, end in ((0, 0, 3), (0, 3, 9), (0, 9, 11), (1, 0, 7)):
        close(out[row : row + 1, begin:end], mine(u[row : row + 1, begin:end]))
    assert not out[1, 7:].any()
    bounds = torch.tensor([0, 3, 9, 11])
    close(mine(u[:1], cu_seqlens=bounds), out[:1])
    flat = mine(u.flatten(0, 1), seqlen=STEPS, seq_idx=torch.tensor(RUNS))
    assert torch.equal(flat, out.flatten(0, 1))


def test_steps_after_packed_prompts_take_a_token_of_each(seed: int) -> None:
    mine, u = layer("Mamba2"), randn(seed, 1, STEPS, D)
    kept = InferenceParams(STEPS, 2)
    mine(u, cu_seqlens=torch.tensor([0, 4, STEPS]), inference_params=kept)
    kept.seqlen_offset = STEPS
    following = randn(seed + 1, 2, 1, D)
    found = mine(following, inference_params=kept)
    for row, part in enumerate((u[:, :4], u[:, 4:])):
        close(found[row], mine(torch.cat([part, following[row : row + 1]], 1))[0, -1:])


U = torch.zeros(BATCH, STEPS, D, dtype=torch.float64)
LAYER_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"u": None}, "u is NoneType"),
    ({"u": U[0]}, "u has shape"),
    ({"u": U, "seqlen": 3}, "u has shape"),
    ({"u": U.flatten(0, 1), "seqlen": 3}, "u has shape"),
    ({"u": U, "seq_idx": torch.zeros(STEPS, dtype=torch.int32)}, "seq_idx has shape"),
    ({"u": U, "seq_idx": U[..., 0]}, "seq_idx has dtype"),
    ({"u": U, "cu_seqlens": torch.tensor([0, STEPS])}, "u has shape"),
    ({"u": U[:1], "cu_seqlens": torch.tensor([0.0, STEPS])}, "cu_seqlens has dtype"),
    ({"u": U[:1], "cu_seqlens": torch.tensor([0, 4, STEPS]), "seq_idx": torch.tensor(RUNS[:1])}, "cu_seqlens is"),
    ({"u": U, "seq_idx": torch.tensor(RUNS), "inference_params": InferenceParams(9, 2)}, "cu_seqlens is None"),
    ({"u": U, "inference_params": InferenceParams(9, 2, seqlen_offset=3)}, "inference_params.seqlen_offset is 3"),
]


@pytest.mark.parametrize(("given", "said"), LAYER_REFUSED)
def test_a_layer_names_what_it_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^Mamba2: {said}"):
        layer("Mamba2")(**given)


@each_kind
def test_a_step_takes_one_step_of_the_batch_it_knows(name: str) -> None:
    mine, kept = layer(name), InferenceParams(9, 2)
    mine(U, inference_params=kept)
    kept.seqlen_offset = STEPS
    with pytest.raises(ValueError, match=r"hidden_states has shape \(2, 11, 16\), expected \(batch, 1, d_model\)"):
        mine(U, inference_params=kept)
    with pytest.raises(ValueError, match=r"a batch of 2, as inference_params has"):
        mine(U[:1, :1], inference_params=kept)
    mine.layer_idx = None
    with pytest.raises(ValueError, match=f"^{type(mine).__name__}: layer_idx is None"):
        mine(U, inference_params=kept)


def test_what_a_layer_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match=r"^Mamba2: process_group is not supported"):
        Mamba2(D, process_group=object())
    with pytest.raises(ValueError, match=r"expand is 1\.5"):
        Mamba(D, expand=1.5)


@each_kind
def test_the_model_has_the_logits_of_retrograds(name: str, seed: int) -> None:
    mine, ids = hybrid(name), tokens(seed)
    own = retrograd.nn.LanguageModel(mine.backbone.config).double()
    own.load_state_dict(mine.state_dict())
    logits = mine(ids).logits
    assert torch.equal(logits, own(ids))
    assert torch.equal(mine(ids, num_last_tokens=3).logits, logits[:, -3:])
    assert torch.equal(mine(ids, position_ids=torch.arange(STEPS)[None])[0], logits)


@each_kind
def test_the_model_keeps_packed_sequences_apart_in_every_layer(name: str, seed: int) -> None:
    mine, ids = hybrid(name), tokens(seed)
    together = mine(ids, seq_idx=torch.tensor(RUNS)).logits
    for row, begin, end in ((0, 0, 3), (0, 3, 9), (0, 9, 11), (1, 0, 7)):
        close(together[row : row + 1, begin:end], mine(ids[row : row + 1, begin:end]).logits)
    close(mine(ids[:1], cu_seqlens=torch.tensor([0, 3, 9, 11])).logits, together[:1])


@each_kind
@pytest.mark.parametrize("allocated", [False, True])
def test_the_model_goes_on_from_a_prompt(name: str, allocated: bool, seed: int) -> None:
    mine, ids = hybrid(name), tokens(seed)
    kept = InferenceParams(STEPS, BATCH)
    if allocated:
        kept.key_value_memory_dict = mine.allocate_inference_cache(BATCH, STEPS)
    with torch.no_grad():
        found = [mine(ids[:, :6], inference_params=kept).logits]
        for begin, end in ((6, 7), (7, 10), (10, 11)):  # a step, several, a step
            kept.seqlen_offset = begin
            found.append(mine(ids[:, begin:end], inference_params=kept).logits)
        close(torch.cat(found, 1), mine(ids).logits)


def greedy(mine: MambaLMHeadModel, ids: Tensor, count: int) -> Tensor:
    for _ in range(count):
        ids = torch.cat([ids, mine(ids).logits[:, -1:, :VOCABULARY].argmax(-1)], 1)
    return ids


class Stream:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self.ended = False

    def put(self, tokens: Tensor) -> None:
        self.found.append(tokens)

    def end(self) -> None:
        self.ended = True


@each_kind
def test_generate_takes_the_likeliest_tokens(name: str, seed: int) -> None:
    mine, ids, stream = hybrid(name), tokens(seed), Stream()
    expected = greedy(mine, ids, 5)
    assert torch.equal(mine.generate(ids, STEPS + 5, streamer=stream, cg=True), expected)
    assert torch.equal(torch.cat(stream.found, 1), expected)
    assert stream.ended
    full = mine.generate(ids, max_length=STEPS + 5, return_dict_in_generate=True, output_scores=True)
    assert torch.equal(full.sequences, expected)
    close(torch.stack(full.scores, 1), mine(expected[:, :-1]).logits[:, STEPS - 1 :, :VOCABULARY])
    assert mine.generate(ids, max_length=3, return_dict_in_generate=True).scores is None
    assert mine.generate(ids, max_length=3).shape == (BATCH, STEPS + 1)  # one token at least, as mamba_ssm's


def test_generate_ends_rows_at_eos(seed: int) -> None:
    mine, ids = model(), tokens(seed)
    whole = greedy(mine, ids, 8)
    eos = int(whole[0, STEPS])  # the first row ends at once
    for options in ({}, {"vocab_size": VOCABULARY}):  # the ways with and without CUDA graphs
        found = mine.generate(ids, STEPS + 8, eos_token_id=eos, **options)
        assert (found[0, STEPS:] == eos).all()
        assert found.shape[1] <= STEPS + 8
        assert torch.equal(found[1], whole[1, : found.shape[1]])


OPTIONS: list[dict[str, Any]] = [{"top_k": 0}, {"top_k": 4}, {"top_k": 4, "top_p": 0.6}, {"top_k": 0, "top_p": 0.3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_generate_draws_among_the_likeliest_by_pytorchs_seed(options: dict[str, Any], seed: int) -> None:
    mine, ids = model(), tokens(seed, 4)
    drawn = []
    for _ in range(2):
        torch.manual_seed(seed)
        drawn.append(mine.generate(ids, 24, temperature=3.0, **options))
    assert torch.equal(*drawn)
    logits = mine(drawn[0][:, :-1]).logits[:, 3:, :VOCABULARY]
    shares, order = (logits / 3).softmax(-1).sort(descending=True)
    kept = torch.ones_like(shares, dtype=torch.bool)
    if options["top_k"]:
        kept[..., options["top_k"] :] = False
    shares = shares * kept / (shares * kept).sum(-1, keepdim=True)
    kept &= shares.cumsum(-1) - shares < options.get("top_p", 1.0)
    assert kept.scatter(-1, order, kept).gather(-1, drawn[0][:, 4:, None]).all()
    assert not torch.equal(drawn[0], mine.generate(ids, 24))


def test_generate_follows_a_teacher_and_punishes_repetition(seed: int) -> None:
    mine, ids = model(), tokens(seed, 4)
    teacher = tokens(seed + 1, 7)
    found = mine.generate(ids, 9, teacher_outputs=teacher)
    assert torch.equal(found[:, 4:7], teacher[:, 4:])
    assert torch.equal(found, greedy(mine, found[:, :7], 2))
    never = mine.generate(ids, 20, repetition_penalty=1e9, output_scores=True, return_dict_in_generate=True)
    for step, logits in enumerate(never.scores):
        said = logits.gather(1, never.sequences[:, : 4 + step])
        punished = logits.scatter(1, never.sequences[:, : 4 + step], torch.where(said < 0, said * 1e9, said / 1e9))
        assert torch.equal(never.sequences[:, 4 + step], punished.argmax(-1))


class Counter(nn.Module, GenerationMixin):
    """A model of a user: the next token is one more."""

    def forward(self, input_ids: Tensor, **options: Any) -> Any:
        assert options["num_last_tokens"] == 1
        logits = F.one_hot(input_ids[:, -1:] + 1, VOCABULARY).double()
        return type("Output", (), {"logits": logits})


def test_generate_is_there_for_other_models() -> None:
    assert torch.equal(Counter().generate(torch.tensor([[3]]), 7), torch.arange(3, 10)[None])  # type: ignore[arg-type]


GENERATE_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, "input_ids has shape"),
    ({"max_length": 9.0}, "max_length is float"),
    ({"top_k": -1}, "top_k is -1"),
    ({"eos_token_id": 2.0}, "eos_token_id is float"),
    ({"eos_token_id": VOCABULARY}, f"eos_token_id is {VOCABULARY}"),
    ({"vocab_size": -1}, "vocab_size is -1"),
    ({"teacher_outputs": torch.zeros(2, 3)}, "teacher_outputs has dtype"),
    ({"input_ids": torch.full((2, 3), VOCABULARY + 6)}, "input_ids is 56"),
    ({"top_k": 0, "top_p": 1.5}, "top_p is 1.5"),
    ({"min_p": 0.1}, "min_p is not supported"),
    ({"top_k": 0, "temperature": -1.0}, "temperature is -1.0"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ({"teacher_outputs": torch.zeros(1, 3, dtype=torch.long)}, "teacher_outputs has shape"),
    ({"enable_timing": True}, "enable_timing is not supported"),
    ({"cg": None}, "cg is NoneType"),
    ({"output_scores": 2}, "output_scores is 2"),
]


@pytest.mark.parametrize(("given", "said"), GENERATE_REFUSED)
def test_generate_names_what_it_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^generate: {said}"):
        model().generate(**({"input_ids": tokens(0), "max_length": 20} | given))


MODEL_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": torch.zeros(3, dtype=torch.long)}, "input_ids has shape"),
    ({"num_last_tokens": -1}, "num_last_tokens is -1"),
    ({"seq_idx": torch.zeros(BATCH, 1, dtype=torch.int32)}, "seq_idx has shape"),
    ({"seq_idx": torch.tensor(RUNS), "inference_params": InferenceParams(9, 2)}, "seq_idx is not supported, since"),
    ({"inference_params": InferenceParams(9, 2, seqlen_offset=1)}, "inference_params.key_value_memory_dict is"),
]


@pytest.mark.parametrize(("given", "said"), MODEL_REFUSED)
def test_the_model_names_what_it_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^MambaLMHeadModel: {said}"):
        model()(**({"input_ids": tokens(0)} | given))


def test_what_a_model_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="rms_norm is False, expected True"):
        model(rms_norm=False)
    with pytest.raises(ValueError, match=r"ssm_cfg\['layer'\] is 'Mamba3'"):
        model(ssm_cfg={"layer": "Mamba3"})
    with pytest.raises(NotImplementedError, match=r"^MambaLMHeadModel: initializer_cfg is not supported"):
        MambaLMHeadModel(MambaConfig(d_model=D, n_layer=1), initializer_cfg={"initializer_range": 0.1})
    with pytest.raises(TypeError, match=r"^MambaLMHeadModel: config is dict"):
        MambaLMHeadModel({"d_model": D})


@each_kind
def test_a_model_is_saved_as_mamba_ssm_does_and_loaded(name: str, seed: int, tmp_path: Path) -> None:
    mine, ids = hybrid(name), tokens(seed)
    mine.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["ssm_cfg"] == {"layer": name, **SSM[name]}
    stored = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    assert stored["lm_head.weight"].data_ptr() == stored["backbone.embedding.weight"].data_ptr()
    again = MambaLMHeadModel.from_pretrained(str(tmp_path)).double()
    assert again.config == mine.config
    assert again.lm_head.weight is again.backbone.embedding.weight
    torch.testing.assert_close(again(ids).logits, mine(ids).logits, rtol=1e-4, atol=1e-5)  # parameters in float32
    half = MambaLMHeadModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.lm_head.weight.dtype == torch.bfloat16


def test_the_functions_of_retrograd_take_the_model(seed: int) -> None:
    mine, ids = hybrid(), tokens(seed)
    found = retrograd.nn.score(mine.language_model(), ids)
    expected = mine(ids[:, :-1]).logits[..., :VOCABULARY].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("state_len", [1, 3, 6])
def test_states_of_packed_sequences_are_their_last_inputs(state_len: int, seed: int) -> None:
    x, bounds = randn(seed, STEPS, 5).requires_grad_(), [0, 2, 2, 7, STEPS - 1]
    states = causal_conv1d_varlen_states(x, torch.tensor(bounds, dtype=torch.int32), state_len)
    parts = [x[begin:end] for begin, end in pairwise(bounds)]
    expected = torch.stack([F.pad(part, (0, 0, state_len, 0))[-state_len:].T for part in parts])
    assert torch.equal(states, expected)
    weights = randn(seed + 1, *states.shape)
    for one, other in zip(
        torch.autograd.grad(states, x, weights), torch.autograd.grad(expected, x, weights), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": U}, "x has shape"),
        ({"x": U[0].int()}, "x has dtype"),
        ({"cu_seqlens": torch.tensor(3)}, "cu_seqlens has shape"),
        ({"cu_seqlens": torch.tensor([0.0, 3.0])}, "cu_seqlens has dtype"),
        ({"state_len": 2.0}, "state_len is float"),
        ({"state_len": 0}, "state_len is 0"),
    ],
)
def test_states_of_packed_sequences_name_what_they_refuse(given: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"x": U[0], "cu_seqlens": torch.tensor([0, 3, STEPS]), "state_len": 3}
    with pytest.raises((ValueError, TypeError), match=f"^causal_conv1d_varlen_states: {said}"):
        causal_conv1d_varlen_states(**(good | given))
