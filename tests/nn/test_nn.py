"""retrograd.nn: the modules compute the paper's model and read the checkpoints of state-spaces/mamba."""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import plain_nn
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from retrograd.models.shapes import model_shapes
from retrograd.nn import (
    Attention,
    AttentionConfig,
    Block,
    GatedDeltaNetConfig,
    LanguageModel,
    Mamba,
    Mamba1Config,
    Mamba2,
    Mamba2Config,
    MambaConfig,
    MambaState,
    RMSNorm,
    checksums,
    generate,
    load,
    save,
)
from retrograd.nn.mixer import Mixer

CONFIG = MambaConfig(d_model=32, n_layer=3, vocab_size=61, ssm_cfg=Mamba1Config(d_state=8))
OTHER = replace(
    CONFIG,
    ssm_cfg=Mamba1Config(d_state=8, d_conv=3, expand=3, dt_rank=5, bias=True, conv_bias=False),
    tie_embeddings=False,
    residual_in_fp32=False,
)
HYBRID = replace(
    CONFIG,
    d_intermediate=100,
    ssm_cfg=Mamba2Config(d_state=8, headdim=8, ngroups=2, d_ssm=48),
    attn_layer_idx=(1,),
    attn_cfg=AttentionConfig(num_heads=4, num_heads_kv=2, mlp_dim=20, d_conv=3, rotary_emb_dim=4, qk_norm=True),
)
TRANSFORMER = replace(
    CONFIG,
    n_layer=2,
    d_intermediate=100,
    attn_layer_idx=(0, 1),
    attn_cfg=AttentionConfig(num_heads=4, rotary_emb_dim=8, window=6, qkv_proj_bias=False, out_proj_bias=False),
)
DELTA = replace(
    CONFIG, n_layer=1, ssm_cfg=GatedDeltaNetConfig(num_heads=4, num_heads_qk=2, head_dim_qk=8, head_dim_v=8)
)
CONFIGS = {"mamba": CONFIG, "other": OTHER, "hybrid": HYBRID, "transformer": TRANSFORMER, "gated delta rule": DELTA}
CAPACITY = 30
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def model(config: MambaConfig = CONFIG, seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    return LanguageModel(config)


def tokens(batch: int, time: int, seed: int = 1) -> Tensor:
    return torch.randint(CONFIG.vocab_size, (batch, time), generator=torch.Generator().manual_seed(seed))


@each_config
def test_the_model_and_every_gradient_are_those_of_the_definition(config: MambaConfig) -> None:
    ours, ids = model(config).double(), tokens(2, 17)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)  # norms, biases and D are constant at first
    weights = {name: p.detach().clone().requires_grad_() for name, p in ours.named_parameters()}
    expected = plain_nn.logits(weights, config, ids)
    logits = ours(ids)
    torch.testing.assert_close(logits, expected)
    pull = torch.randn(expected.shape, dtype=torch.float64)
    logits.backward(pull)
    expected.backward(pull)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad)


@each_config
def test_a_sequence_in_pieces_gives_what_it_gives_whole(config: MambaConfig) -> None:
    ours, ids = model(config).double(), tokens(2, 23)
    whole, state = ours(ids, ours.initial_state(2, capacity=CAPACITY))
    torch.testing.assert_close(whole, ours(ids))
    first, middle = ours(
        ids[:, :2], ours.initial_state(2, capacity=CAPACITY)
    )  # fewer steps than the convolution is wide
    then, last = ours(ids[:, 2:], middle)
    torch.testing.assert_close(torch.cat((first, then), 1), whole)
    for a, b in zip(state, last, strict=True):
        torch.testing.assert_close(a, b)


@each_config
def test_gradients_go_through_the_state(config: MambaConfig) -> None:
    ours, ids = model(config).double(), tokens(2, 11)
    ours(ids).square().sum().backward()
    whole = {name: p.grad for name, p in ours.named_parameters()}
    ours.zero_grad(set_to_none=True)
    first, middle = ours(ids[:, :5], ours.initial_state(2, capacity=CAPACITY))
    then, _ = ours(ids[:, 5:], middle)
    torch.cat((first, then), 1).square().sum().backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name])


@each_config
def test_packed_sequences_do_not_see_each_other(config: MambaConfig) -> None:
    ours, ids = model(config).double(), tokens(1, 30)
    ends = [0, 7, 7, 9, 30]
    cu_seqlens = torch.tensor(ends, dtype=torch.int32)
    packed, states = ours(ids, ours.initial_state(4, capacity=CAPACITY), cu_seqlens=cu_seqlens)
    torch.testing.assert_close(packed, ours(ids, cu_seqlens=cu_seqlens))
    from_cumsum, _ = ours(ids, ours.initial_state(4, capacity=CAPACITY), cu_seqlens=cu_seqlens.long())
    assert torch.equal(packed, from_cumsum)
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        if start == stop:
            continue
        alone, state = ours(ids[:, start:stop], ours.initial_state(1, capacity=CAPACITY))
        torch.testing.assert_close(packed[:, start:stop], alone)
        for mine, own in zip(states, state, strict=True):
            for a, b in zip(mine, own, strict=True):
                torch.testing.assert_close(None if a is None else a[number], None if b is None else b[0])


@each_config
def test_steps_give_what_the_whole_forward_gives(config: MambaConfig) -> None:
    ours, ids = model(config).double(), tokens(3, 9)
    state, rows = ours.initial_state(3, capacity=9), []
    for t in range(9):
        row, state = ours.step(ids[:, t], state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), ours(ids))


@each_config
def test_generation_takes_the_tokens_that_the_whole_forward_takes(config: MambaConfig) -> None:
    ours, prompt = model(config), tokens(2, 5)
    generated = torch.stack(list(generate(ours, prompt, 12, temperature=0.0)), 1)
    text = prompt
    for _ in range(12):
        text = torch.cat((text, ours(text)[:, -1, : CONFIG.vocab_size].argmax(-1, keepdim=True)), 1)
    assert torch.equal(torch.cat((prompt, generated), 1), text)


@each_config
def test_generation_gives_the_state_more_room_when_it_needs_it(
    config: MambaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, prompt = model(config), tokens(2, 5)
    expected = list(generate(ours, prompt, 30, temperature=0.0))
    monkeypatch.setattr(import_module("retrograd.nn.generate"), "ROOM", 3)
    assert torch.equal(torch.stack(list(generate(ours, prompt, 30, temperature=0.0))), torch.stack(expected))


def test_a_state_cannot_have_less_room_than_before() -> None:
    ours = model(replace(CONFIG, attn_layer_idx=(0,), attn_cfg=AttentionConfig(2)))
    with pytest.raises(ValueError, match=r"^Attention: capacity is 4, expected at least that of state, 5$"):
        ours.grown(ours.initial_state(1, capacity=5), 4)


def test_generation_draws_from_the_seed_and_within_the_vocabulary() -> None:
    ours, prompt = model(), tokens(4, 3)

    def drawn(seed: int) -> Tensor:
        return torch.stack(list(generate(ours, prompt, 40, seed=seed)), 1)

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))
    assert drawn(5).max() < CONFIG.vocab_size  # the embedding has rows beyond it


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_checkpoint_of_state_spaces_loads_by_key(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    shapes = dict(model_shapes(replace(CONFIG, n_layer=2, ssm_cfg=Mamba1Config())))
    weights = {name: torch.randn(shape).to(dtype) / 8 for name, shape in shapes.items()}
    weights["lm_head.weight"] = weights["backbone.embedding.weight"]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    theirs = {
        "d_model": 32,
        "n_layer": 2,
        "vocab_size": 61,
        "ssm_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(theirs))
    ours = load(tmp_path, dtype=torch.float64)
    exact = {name: value.double() for name, value in weights.items()}
    torch.testing.assert_close(ours.double()(tokens(2, 9)), plain_nn.logits(exact, ours.config, tokens(2, 9)))
    assert ours.lm_head.weight is ours.backbone.embedding.weight
    assert all(p.requires_grad for p in ours.parameters())


@each_config
def test_a_saved_model_is_read_back_to_the_bit(tmp_path: Path, config: MambaConfig) -> None:
    ours = model(config)
    save(ours, tmp_path)
    again = load(tmp_path)
    assert again.config == config
    assert again.state_dict().keys() == ours.state_dict().keys()
    assert torch.equal(again(tokens(1, 9)), ours(tokens(1, 9)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_checkpoint_of_16_bits_is_cast_with_its_states_rates_in_float32_at_least(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    save(model(HYBRID).half(), tmp_path)
    assert {p.dtype for p in load(tmp_path).parameters()} == {torch.float16}
    for name, parameter in load(tmp_path, dtype=dtype).named_parameters():
        states = name.endswith((".A_log", ".D", ".dt_bias"))
        assert parameter.dtype == (torch.promote_types(dtype, torch.float32) if states else dtype)
    integers: Any = torch.int64
    with pytest.raises(ValueError, match=r"dtype is torch.int64, expected a torch.dtype of floats"):
        load(tmp_path, dtype=integers)


@each_config
def test_a_model_is_loaded_for_its_shapes_alone(tmp_path: Path, config: MambaConfig) -> None:
    ours = model(config)
    save(ours, tmp_path)
    shapes = load(tmp_path, device="meta", dtype=torch.bfloat16)
    assert {p.device.type for p in shapes.parameters()} == {"meta"}
    assert {name: p.shape for name, p in shapes.named_parameters()} == {n: p.shape for n, p in ours.named_parameters()}
    assert shapes(tokens(2, 5).to("meta")).shape == (2, 5, 64)


def test_a_config_of_more_layers_than_there_are_weights_for_is_refused_at_once(tmp_path: Path) -> None:
    save(model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 10**7, "d_model": 32}))
    since = time.monotonic()
    with pytest.raises(ValueError, match=r"backbone.layers.3.norm.weight is missing"):
        load(tmp_path)
    assert time.monotonic() - since < 5  # too little time to build so many modules


def test_files_that_are_listed_have_to_be_those_that_were(tmp_path: Path) -> None:
    ours = model()
    save(ours, tmp_path)
    for name in ("config.json", "model.safetensors"):
        checksums.write(tmp_path, ("config.json", "model.safetensors"))
        load(tmp_path)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole + b" ")
        with pytest.raises(ValueError, match=f"{name} is not the file that SHA256SUMS beside it lists"):
            load(tmp_path)
        (tmp_path / name).write_bytes(whole)
    save(model(seed=1), tmp_path)  # files saved later are no longer listed
    load(tmp_path)
    (tmp_path / "SHA256SUMS").write_bytes(b"-----BEGIN\xff\n")  # a file of another tool
    load(tmp_path)


def test_a_damaged_file_of_a_model_is_named(tmp_path: Path) -> None:
    save(model(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read"):
        load(tmp_path)
    for text in (b'{"d_model": \xff}', b"{", b"[" * 100_000):
        (tmp_path / "config.json").write_bytes(text)
        with pytest.raises(ValueError, match=r"config.json is not JSON"):
            load(tmp_path)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, tie_embeddings=False)], ids=["tied", "untied"])
def test_a_compiled_model_is_saved_as_the_model_that_it_wraps(tmp_path: Path, config: MambaConfig) -> None:
    ours: Any = model(config)
    expected = ours(tokens(1, 9))
    ours.backbone.layers[1] = torch.compile(ours.backbone.layers[1])
    save(cast(LanguageModel, torch.compile(ours)), tmp_path)
    assert torch.equal(load(tmp_path)(tokens(1, 9)), expected)


def test_the_head_stays_the_embedding_wherever_the_model_goes() -> None:
    def tied(ours: LanguageModel) -> bool:
        return ours.lm_head.weight is ours.backbone.embedding.weight

    assert tied(model().half())
    assert tied(copy.deepcopy(model()))
    assert tied(LanguageModel(CONFIG, device="meta").to_empty(device="cpu"))
    assert not tied(model(replace(CONFIG, tie_embeddings=False)).half())
    classifier: Any = model()
    classifier.lm_head = nn.Linear(32, 5)
    assert classifier.half()(tokens(1, 3)).shape == (1, 3, 5)
    classifier.lm_head = nn.Identity()
    assert classifier.float()(tokens(1, 3)).shape == (1, 3, 32)


@pytest.mark.parametrize("assign", [False, True])
def test_the_head_stays_the_embedding_whatever_state_is_loaded(tmp_path: Path, assign: bool) -> None:
    ours, other, ids = model(), model(seed=1), tokens(1, 9)
    expected = other(ids)
    compiled: Any = torch.compile(ours)
    compiled.load_state_dict({f"_orig_mod.{name}": value for name, value in other.state_dict().items()}, assign=assign)
    assert ours.lm_head.weight is ours.backbone.embedding.weight
    assert ours.lm_head.weight.requires_grad
    assert torch.equal(ours(ids), expected)
    save(other, tmp_path)  # the file has the embedding but no head
    ours = model()
    ours.load_state_dict(load_file(tmp_path / "model.safetensors"), assign=assign)
    assert ours.lm_head.weight is ours.backbone.embedding.weight
    assert torch.equal(ours(ids), expected)
    state = other.state_dict() | {"lm_head.weight": other.lm_head.weight.detach() + 1}
    with pytest.raises(RuntimeError, match=r"lm_head.weight differ, but they are one parameter"):
        ours.load_state_dict(state, assign=assign)
    untied = model(replace(CONFIG, tie_embeddings=False))
    untied.load_state_dict(state, assign=assign)
    assert not torch.equal(untied.lm_head.weight, untied.backbone.embedding.weight)


def test_a_head_that_should_be_the_embedding_and_is_not_is_never_dropped(tmp_path: Path) -> None:
    ours = model()
    save(ours, tmp_path)
    ours.lm_head.weight = nn.Parameter(ours.lm_head.weight + 1)
    with pytest.raises(ValueError, match=r"save: lm_head.weight is not backbone.embedding.weight"):
        save(ours, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "model.safetensors").unlink()
    torch.save(ours.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"lm_head.weight is not backbone.embedding.weight"):
        load(tmp_path)


def test_only_a_language_model_is_saved(tmp_path: Path) -> None:
    linear: Any = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="save: model is Linear, expected a LanguageModel"):
        save(linear, tmp_path)


def broken(ours: LanguageModel, name: str, value: Tensor | None) -> dict[str, Tensor]:
    weights = {key: p for key, p in ours.state_dict().items() if key != name}
    return weights if value is None else weights | {name: value}


@pytest.mark.parametrize("exact", [None, True, False])
def test_a_loaded_model_is_exact_where_that_is_said(tmp_path: Path, exact: bool | None) -> None:
    save(model(), tmp_path)
    assert load(tmp_path, exact=exact).lm_head.exact is exact


def test_a_name_on_the_hub_is_no_folder() -> None:
    says = r"^load: folder is 'state-spaces/mamba2-130m', expected a folder on disk, not a name on the Hub$"
    with pytest.raises(FileNotFoundError, match=says):
        load("state-spaces/mamba2-130m")


@each_config
def test_packed_sequences_in_a_batch_of_several_rows_are_refused_by_the_model(config: MambaConfig) -> None:
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    says = r"^LanguageModel: tokens has shape \(2, 8\), expected \(1, time\), since cu_seqlens is given$"
    with pytest.raises(ValueError, match=says):
        model(config)(tokens, cu_seqlens=torch.tensor([0, 3, 8]))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("backbone.layers.1.mixer.D", None, "backbone.layers.1.mixer.D is missing"),
        ("backbone.norm_f.weight", torch.ones(31), r"backbone.norm_f.weight has shape \(31,\), expected \(32,\)"),
        ("backbone.norm_f.bias", torch.ones(32), "backbone.norm_f.bias is not a parameter"),
        ("backbone.norm_f.weight", torch.ones(32, dtype=torch.int64), "is torch.int64, expected a tensor of floats"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, name: str, value: Tensor | None, says: str) -> None:
    ours = model()
    save(ours, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor pytorch_model.bin"):
        load(tmp_path)
    torch.save(broken(ours, name, value), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=says):
        load(tmp_path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rms_norm": False}, "rms_norm is False, expected True"),
        ({"rms_norm": None}, "rms_norm is None, expected True"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, r"ssm_cfg\['layer'\] is 'Mamba3', expected 'Mamba1' or 'Mamba2'"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 48}}, "headdim is 48, expected a divisor of"),
        ({"attn_layer_idx": [3]}, r"attn_layer_idx is \[3\], expected numbers from 0 to 1"),
        ({"attn_layer_idx": [1]}, r"attn_cfg is None, expected an AttentionConfig for layers \(1,\)"),
        ({"attn_layer_idx": [1], "attn_cfg": {"num_heads": 4, "causal": False}}, "causal is False, expected True"),
        ({"d_intermediate": -1}, "d_intermediate is -1, expected an integer of at least 0"),
        ({"d_modle": 3}, "'d_modle' is not known"),
        ({"ssm_cfg": {"d_model": 3}}, "'d_model' is not known"),
        ({"n_layer": 0}, "n_layer is 0, expected an integer of at least 1"),
        ({"ssm_cfg": {"dt_rank": 0}}, "dt_rank is 0"),
        ({"ssm_cfg": {"dt_init": "zero"}}, "dt_init is 'zero'"),
        ({"ssm_cfg": {"dt_min": 0.2}}, "expected 0 < dt_min <= dt_max"),
        ({"ssm_cfg": {"dt_min": "0.01"}}, "dt_min is '0.01', expected a finite number"),
        ({"ssm_cfg": {"dt_max": math.inf}}, "dt_max is inf, expected a finite number"),
        ({"ssm_cfg": {"dt_scale": -1.0}}, "dt_scale is -1.0, expected a finite number of at least 0"),
        ({"d_model": True}, "d_model is True, expected an integer"),
        ({"d_model": 64.0}, "d_model is 64.0, expected an integer"),
        ({"tie_embeddings": None}, "tie_embeddings is None, expected True or False"),
        ({"residual_in_fp32": "false"}, "residual_in_fp32 is 'false', expected True or False"),
    ],
)
def test_configs_that_are_not_ours_are_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MambaConfig.from_dict({"d_model": 64, "n_layer": 2, "vocab_size": 256} | given)


def test_a_config_without_its_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="MambaConfig: n_layer is missing"):
        MambaConfig.from_dict({"d_model": 64, "vocab_size": 256})


def test_what_says_nothing_of_the_model_may_stand_in_a_config() -> None:
    sizes: dict[str, Any] = {"d_model": 64, "n_layer": 2, "vocab_size": 256}
    beside = {"ssm_cfg": {"use_fast_path": True}, "fused_add_norm": False, "attn_layer_idx": None, "attn_cfg": None}
    assert MambaConfig.from_dict(sizes | beside) == MambaConfig(**sizes)


def test_a_config_that_is_not_a_mapping_is_refused() -> None:
    lists: Any = [32]
    with pytest.raises(TypeError, match="config is list, expected a mapping"):
        MambaConfig.from_dict(lists)
    with pytest.raises(TypeError, match="ssm_cfg is list, expected a mapping"):
        MambaConfig.from_dict({"d_model": 64, "n_layer": 2, "vocab_size": 256, "ssm_cfg": lists})


@pytest.mark.parametrize("sizes", [{"d_state": 0}, {"d_conv": 0}, {"expand": 0}, {"dt_rank": 0}, {"dt_min": 0}])
def test_a_block_refuses_the_sizes_that_a_config_refuses(sizes: dict[str, Any]) -> None:
    (name,) = sizes
    with pytest.raises(ValueError, match=f"{name} is 0"):
        Mamba(32, Mamba1Config(**sizes))


def test_initialisation_draws_delta_between_its_bounds_and_halves_nothing_else() -> None:
    torch.manual_seed(0)
    block = Mamba(64, Mamba1Config(dt_min=0.01, dt_max=0.03))
    delta = F.softplus(block.dt_proj.bias)
    assert 0.0099 < delta.min() < 0.012
    assert 0.027 < delta.max() < 0.0301
    assert torch.equal(block.A[5], -torch.arange(1.0, 17.0).log().exp())
    assert block.dt_proj.weight.abs().max() <= block.rank**-0.5


@pytest.mark.parametrize("d_intermediate", [0, 100])
def test_what_layers_add_to_the_stream_is_divided_by_the_root_of_their_number(d_intermediate: int) -> None:
    layers, config = (3, 7), AttentionConfig(num_heads=4)
    ssm = Mamba2Config(headdim=32, d_state=16)
    deep = model(MambaConfig(64, 8, 61, d_intermediate, ssm, attn_layer_idx=layers, attn_cfg=config))
    root = math.sqrt(16 if d_intermediate else 8)
    for block in deep.backbone.blocks:
        assert isinstance(block.mixer, Attention | Mamba2)
        for last in (block.mixer.out_proj, *([block.mlp.fc2] if block.mlp is not None else [])):
            bound = last.in_features**-0.5 / root  # nn.Linear's, divided
            assert 0.9 * bound < last.weight.abs().max() <= bound
    assert deep.backbone.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_residual_stream_is_float32_beside_activations_of_16_bits() -> None:
    block = Block(RMSNorm(32), Mamba(32)).bfloat16()
    x = torch.randn(2, 5, 32, dtype=torch.bfloat16)
    out, stream, _ = block(x, None)
    assert (out.dtype, stream.dtype) == (torch.bfloat16, torch.float32)
    _, again, _ = block(out, stream)
    assert torch.equal(again, out.float() + stream)
    narrow = Block(RMSNorm(32), Mamba(32), residual_in_fp32=False).bfloat16()
    assert narrow(x, None)[1].dtype == torch.bfloat16


def test_a_block_takes_any_mixer() -> None:
    class Mean(Mixer):
        def initial_state(self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None) -> int:
            return 0

        def divide_output(self, by: float) -> None:
            pass

        def forward(self, u: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Any]:
            return u.cumsum(1), state

        def step(self, u: Tensor, state: Any, *, in_place: bool = False) -> tuple[Tensor, Any]:
            return u, state

    out, _, _ = Block(RMSNorm(8), Mean())(torch.ones(1, 3, 8), None)
    torch.testing.assert_close(out[0, :, 0], torch.tensor([1.0, 2.0, 3.0]), rtol=1e-4, atol=0)
    ours = model(MambaConfig(d_model=8, n_layer=2, vocab_size=16))
    ours.backbone.layers[1] = Block(RMSNorm(8), Mean())
    logits, _ = ours(torch.zeros(2, 3, dtype=torch.int64), ours.initial_state(2))
    assert logits.shape == (2, 3, 16)
    with pytest.raises(TypeError, match=r"^generate: state is int, expected tensors, or sequences of them"):
        list(generate(ours, tokens(2, 3) % 16, 3))


@pytest.mark.parametrize(
    ("config", "dynamic"),
    [(CONFIG, False), (CONFIG, True), (HYBRID, False), pytest.param(HYBRID, True, marks=pytest.mark.slow)],
)
def test_the_model_compiles_whole(config: MambaConfig, dynamic: bool) -> None:
    ours, ids = model(config), tokens(2, 12)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    expected = ours(ids)
    torch.testing.assert_close(compiled(ids), expected)
    compiled(ids).square().sum().backward()
    grads = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
    ours.zero_grad()
    expected.square().sum().backward()
    for mine, theirs in zip(grads, (p.grad for p in ours.parameters()), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_generation_compiles_whole() -> None:
    ours, ids = model(HYBRID), tokens(2, 9)
    forward: Any = torch.compile(ours.forward, fullgraph=True, backend="aot_eager")
    step: Any = torch.compile(ours.step, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        _, state = forward(ids[:, :5], ours.initial_state(2, capacity=9))
        for t in range(5, 9):
            row, state = step(ids[:, t], state)
        torch.testing.assert_close(row, ours(ids)[:, -1])


@pytest.mark.parametrize("config", [CONFIG, HYBRID], ids=["mamba", "hybrid"])
def test_autocast_changes_gradients_by_roundings_alone(config: MambaConfig) -> None:
    ours, ids = model(config), tokens(2, 12)
    again = copy.deepcopy(ours)
    with torch.autocast("cpu", torch.bfloat16):
        logits = ours(ids)
    assert logits.dtype == torch.bfloat16
    logits.float().square().mean().backward()
    again(ids).square().mean().backward()
    for (name, mine), exact in zip(ours.named_parameters(), again.parameters(), strict=True):
        assert mine.grad is not None
        assert exact.grad is not None
        assert mine.grad.dtype == torch.float32
        # bf16 rounds to 2^-9; there are some twenty roundings between a weight and the loss.
        assert (mine.grad - exact.grad).norm() <= 20 * 2**-8 * exact.grad.norm(), name


def gradients_of(ours: LanguageModel) -> list[Tensor]:
    ours.zero_grad()
    ours(tokens(2, 12)).square().mean().backward()
    return [p.grad.clone() for p in ours.parameters() if p.grad is not None]


@pytest.mark.parametrize("use_reentrant", [False, True])
@each_config
def test_checkpointed_blocks_have_the_same_gradients_to_the_bit(config: MambaConfig, use_reentrant: bool) -> None:
    ours = model(config)
    plain, run = gradients_of(ours), Block.forward

    def checkpointed(block: Block, *args: Any, **options: Any) -> Any:
        return checkpoint(partial(run, block, **options), *args, use_reentrant=use_reentrant)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "forward", checkpointed)
        again = gradients_of(ours)
    assert len(again) == len(plain) > 0
    assert all(torch.equal(a, b) for a, b in zip(again, plain, strict=True))


@pytest.mark.parametrize("wrap", [checkpoint_wrapper, partial(torch.compile, backend="aot_eager")])
@pytest.mark.parametrize("config", [CONFIG, HYBRID], ids=["mamba", "hybrid"])
def test_layers_may_be_wrapped_one_by_one(config: MambaConfig, wrap: Callable[[nn.Module], nn.Module]) -> None:
    ours = model(config)
    plain, ids = gradients_of(ours), tokens(2, 12)
    expected, _ = ours.step(ids[:, 0], ours.initial_state(2, capacity=1))
    for number, layer in enumerate(ours.backbone.layers):
        ours.backbone.layers[number] = wrap(layer)
    torch.testing.assert_close(gradients_of(ours), plain)
    torch.testing.assert_close(ours.step(ids[:, 0], ours.initial_state(2, capacity=1))[0], expected)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m: m(torch.zeros(2, 5)), TypeError, "tokens has dtype torch.float32, expected torch.int64"),
        (lambda m: m(tokens(2, 5)[0]), ValueError, r"tokens has shape \(5,\), expected \(batch, time\)"),
        (lambda m: m(torch.tensor([[3, 64]])), ValueError, r"tokens is 64, .* 0 to 63 \(vocab_size=61, padded to 64\)"),
        (lambda m: m.step(torch.tensor([-1]), m.initial_state(1)), ValueError, "LanguageModel: tokens is -1, expected"),
        (lambda m: LanguageModel(cast(Any, None)), TypeError, "LanguageModel: config is NoneType"),
        (lambda m: model(HYBRID).initial_state(2), ValueError, "Attention: capacity is None, expected the most steps"),
        (
            lambda m: model(HYBRID)(tokens(2, 5), model(HYBRID).initial_state(2, capacity=4)),
            ValueError,
            "Attention: state has a capacity of 4 steps, expected at least 5, to add u",
        ),
        (lambda m: RMSNorm(-1), ValueError, "RMSNorm: d is -1, expected an integer of at least 1"),
        (lambda m: RMSNorm(8, eps=cast(Any, "a")), TypeError, "RMSNorm: eps is str, expected a float"),
        (lambda m: RMSNorm(8, eps=cast(Any, [1])), TypeError, "RMSNorm: eps is list, expected a float"),
        (lambda m: RMSNorm(8, eps=10**400), ValueError, "RMSNorm: eps is .*, expected a finite number"),
        (
            lambda m: m.backbone.blocks[0].mixer(torch.zeros(2, 5, 32, dtype=torch.bfloat16)),
            TypeError,
            "Mamba: u has dtype torch.bfloat16, expected torch.float32, that of the weights",
        ),
        (
            lambda m: m.backbone.blocks[0].mixer.step(torch.zeros(2, 32).half(), m.initial_state(2)[0]),
            TypeError,
            "Mamba: u has dtype torch.float16",
        ),
        (
            lambda m: m.backbone.blocks[0].mixer(torch.zeros(2, 5, 32), MambaState(*[cast(Any, None)] * 2)),
            TypeError,
            "Mamba: state.conv is NoneType, expected a torch.Tensor",
        ),
        (
            lambda m: m.backbone.blocks[0].mixer.step(
                torch.zeros(2, 32), m.initial_state(2)[0]._replace(ssm=cast(Any, None))
            ),
            TypeError,
            "Mamba: state.ssm is NoneType, expected a torch.Tensor",
        ),
        (lambda m: m.step(tokens(2, 5), m.initial_state(2)), ValueError, r"expected \(batch\)"),
        (lambda m: m(tokens(2, 5), m.initial_state(2)[:1]), TypeError, "expected a sequence of 3 states"),
        (lambda m: m(tokens(2, 5), m.initial_state(3)), ValueError, "initial_state has shape"),
        (lambda m: m.backbone.blocks[0].mixer(torch.zeros(2, 5, 31)), ValueError, r"expected .*d_model=32"),
        (lambda m: m.backbone.blocks[0].mixer.step(torch.zeros(2, 5, 32), None), ValueError, "u has shape"),
        (lambda m: m.backbone.blocks[0].mixer.step(torch.zeros(2, 32), None), TypeError, "Mamba: state is NoneType"),
        (lambda m: m.backbone.blocks[0].mixer(torch.zeros(2, 5, 32), (1, 2)), TypeError, "Mamba: state is tuple"),
        (lambda m: m.backbone.blocks[0].mixer([1.0]), TypeError, r"u is list, expected a torch.Tensor"),
        (lambda m: m([[1, 2]]), TypeError, r"tokens is list, expected a torch.Tensor"),
        # Before the first token is requested:
        (
            lambda m: generate(m, tokens(2, 0), 1),
            ValueError,
            r"prompt has shape \(2, 0\), .*at least one token",
        ),
        (lambda m: generate(m, tokens(2, 3)[0], 1), ValueError, r"generate: prompt has shape \(3,\)"),
        (lambda m: generate(m, tokens(2, 3).float(), 1), TypeError, "generate: prompt has dtype torch.float32"),
        (lambda m: generate(m, tokens(2, 3), 1, temperature=-1), ValueError, "temperature is -1"),
        (lambda m: generate(m, tokens(2, 3), 1, temperature=math.nan), ValueError, "temperature is nan"),
        (
            lambda m: generate(m, tokens(2, 3), 1, temperature=10**400),
            ValueError,
            "temperature is .*, expected a finite",
        ),
        (lambda m: generate(m, tokens(2, 3), 1, temperature=cast(Any, "a")), TypeError, "temperature is str"),
        (
            lambda m: generate(m, tokens(2, 3), -5),
            ValueError,
            "generate: count is -5, expected an integer of at least 0",
        ),
        (lambda m: generate(m, tokens(2, 3), cast(Any, 2.5)), ValueError, "generate: count is 2.5"),
        (lambda m: generate(cast(Any, None), tokens(2, 3), 1), TypeError, "generate: model is NoneType"),
        (lambda m: generate(cast(Any, m.backbone), tokens(2, 3), 1), TypeError, "generate: model is Backbone"),
        (lambda m: generate(m, torch.tensor([[64]]), 1), ValueError, "generate: prompt is 64, expected numbers from 0"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(
    call: Callable[[LanguageModel], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(model())


def test_the_smallest_temperature_draws_the_most_probable_token() -> None:
    ours, prompt = model(), tokens(2, 5)
    coldest = list(generate(ours, prompt, 4, temperature=1e-44))
    assert torch.equal(torch.stack(coldest), torch.stack(list(generate(ours, prompt, 4, temperature=0.0))))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_from_a_model_of_nan_is_refused(temperature: float) -> None:
    ours = model()
    with torch.no_grad():
        ours.backbone.norm_f.weight[3] = math.nan
    with pytest.raises(ValueError, match="generate: model has NaN or infinite logits for token 0"):
        next(generate(ours, tokens(2, 5), 3, temperature=temperature))


@each_config
def test_two_backward_passes_give_the_same_bits(config: MambaConfig) -> None:
    def gradients() -> list[Tensor]:
        ours = model(config)
        F.cross_entropy(ours(tokens(4, 40)).flatten(0, 1), tokens(4, 40, seed=2).flatten()).backward()
        return [p.grad for p in ours.parameters() if p.grad is not None]

    for first, second in zip(gradients(), gradients(), strict=True):
        assert torch.equal(first, second)
