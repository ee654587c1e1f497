"""The configurations of layers: what they refuse, and their form in config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from retrograd.nn import AttentionConfig, Mamba1Config, Mamba2Config, MambaConfig


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mamba1Config(d_state=0), "Mamba1Config: d_state is 0, expected an integer of at least 1"),
        (lambda: Mamba1Config(dt_rank=cast(Any, "half")), "dt_rank is 'half', expected 'auto' or an integer"),
        (lambda: Mamba2Config(ngroups=0), "Mamba2Config: ngroups is 0, expected an integer of at least 1"),
        (lambda: Mamba2Config(rmsnorm=cast(Any, 1)), "Mamba2Config: rmsnorm is 1, expected True or False"),
        (lambda: Mamba2Config(d_ssm=0), "Mamba2Config: d_ssm is 0, expected None or an integer of at least 1"),
        (lambda: Mamba2Config(dt_min=0.2), "Mamba2Config: dt_min is 0.2 and dt_max 0.1, expected 0 < dt_min <= dt_max"),
        (lambda: Mamba2Config(dt_limit=(2.0, 1.0)), r"Mamba2Config: dt_limit is \(2.0, 1.0\), expected two numbers"),
        (lambda: Mamba2Config(dt_limit=(math.nan, 1.0)), r"Mamba2Config: dt_limit is \(nan, 1.0\)"),
        (lambda: Mamba2Config(A_init_range=(1, math.inf)), r"A_init_range is \(1, inf\), expected two numbers, finite"),
        (lambda: Mamba2Config(A_init_range=(0, 1)), r"A_init_range is \(0, 1\)"),
        (lambda: Mamba2Config(conv_init=-1.0), "conv_init is -1.0, expected None or a finite number of at least 0"),
        (lambda: Mamba2Config(d_ssm=64, headdim=16).check(16), "d_ssm is 64, expected at most the layer's 32 channels"),
        (lambda: Mamba2Config(headdim=24).check(32), "headdim is 24, expected a divisor of 64 channels"),
        (lambda: Mamba2Config(headdim=16, ngroups=3).check(32), "ngroups is 3, expected a divisor of 4 heads"),
        (lambda: AttentionConfig(0), "AttentionConfig: num_heads is 0, expected an integer of at least 1"),
        (lambda: AttentionConfig(4, 3), "num_heads_kv is 3, expected a divisor of num_heads=4"),
        (lambda: AttentionConfig(4, causal=False), "causal is False, expected True"),
        (lambda: AttentionConfig(4, window=0), "window is 0, expected None or an integer of at least 1"),
        (lambda: AttentionConfig(4, d_conv=-1), "d_conv is -1, expected an integer of at least 0"),
        (lambda: AttentionConfig(4, rotary_emb_dim=3), "rotary_emb_dim is 3, expected an even number"),
        (
            lambda: AttentionConfig(4, rotary_emb_dim=10).check(32),
            "rotary_emb_dim is 10, expected at most the 8",
        ),
        (lambda: AttentionConfig(4, softmax_scale=math.inf), "softmax_scale is inf, expected None or a finite number"),
        (lambda: AttentionConfig(5).check(32), "num_heads is 5, expected a divisor of d_model=32, or a head_dim"),
        (lambda: AttentionConfig.from_dict({"head_dim": 4}), "AttentionConfig: num_heads is missing"),
        (lambda: AttentionConfig.from_dict({"num_heads": 4, "bias": 1}), "AttentionConfig: 'bias' is not known"),
        (lambda: Mamba2Config.from_dict({"dt_rank": 4}), "Mamba2Config: 'dt_rank' is not known, expected A_init_range"),
        (
            lambda: MambaConfig(n_layer=2, attn_layer_idx=(2,)),
            r"attn_layer_idx is \(2,\), expected numbers",
        ),
        (lambda: MambaConfig(n_layer=2, attn_layer_idx=(1,)), "attn_cfg is None, expected an AttentionConfig"),
        (lambda: MambaConfig(31, 1, ssm_cfg=Mamba2Config()), "headdim is 64, expected a divisor of 62 channels"),
    ],
)
def test_what_no_layer_can_have_is_refused_by_name(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_what_says_only_how_a_layer_is_computed_may_stand_in_its_config() -> None:
    assert Mamba2Config.from_dict({"layer": "Mamba2", "chunk_size": 128, "use_mem_eff_path": False}) == Mamba2Config()
    assert Mamba1Config.from_dict({"layer": "Mamba1", "use_fast_path": False}) == Mamba1Config()


@pytest.mark.parametrize(
    "config",
    [
        Mamba1Config(dt_rank=3),
        Mamba2Config(),
        Mamba2Config(A_init_range=(2, 3), dt_limit=(0.0, 0.5), d_ssm=64),
        AttentionConfig(4, 2, window=7, softmax_scale=0.5),
    ],
)
def test_a_config_goes_through_json_and_can_be_hashed(config: Mamba1Config | Mamba2Config | AttentionConfig) -> None:
    again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)


def test_layers_are_numbered_in_any_form_and_order() -> None:
    given: Any = [[3, 1], {1, 3}, range(1, 4, 2), (1, 3, 3)]
    attention = AttentionConfig(4)
    (config,) = {MambaConfig(n_layer=4, attn_layer_idx=layers, attn_cfg=attention) for layers in given}
    assert [type(config.layer(number)) for number in range(4)] == [Mamba1Config, AttentionConfig] * 2
    for wrong in ("13", 1, None):
        with pytest.raises(TypeError, match=r"attn_layer_idx is \w+, expected numbers of layers"):
            MambaConfig(attn_layer_idx=cast(Any, wrong), attn_cfg=attention)
