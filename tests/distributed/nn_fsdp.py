"""A training step with sharded parameters, by torch's own reduction; run by test_nn_fsdp.py."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from retrograd.nn import AttentionConfig, LanguageModel, Mamba1Config, Mamba2Config, MambaConfig

SIZES: dict[str, Any] = {"d_model": 16, "n_layer": 2, "vocab_size": 24}
ATTENTION = AttentionConfig(num_heads=2, d_conv=3, rotary_emb_dim=4, qk_norm=True, mlp_dim=10)
CONFIGS = [
    MambaConfig(**SIZES, ssm_cfg=Mamba1Config(d_state=4)),
    MambaConfig(
        **SIZES,
        ssm_cfg=Mamba2Config(d_state=4, headdim=8),
        attn_layer_idx=(1,),
        attn_cfg=ATTENTION,
        d_intermediate=20,
        tie_embeddings=False,
    ),
]


def check_gradients(rank: int, world: int, device: str) -> None:
    """Raise unless the gradients of shards are those of whole parameters; two processes."""
    for config in CONFIGS:
        torch.manual_seed(0)
        whole, sharded = LanguageModel(config), LanguageModel(config)
        sharded.load_state_dict(whole.state_dict())
        for block in sharded.backbone.layers:
            fully_shard(block)
        fully_shard(sharded)
        tokens = torch.randint(config.vocab_size, (world, 9))
        pull = torch.randn(world, 9, config.padded_vocab_size)
        (whole(tokens) * pull).sum().div(world).backward()  # gradients of shards are means over processes
        (sharded(tokens[rank : rank + 1]) * pull[rank : rank + 1]).sum().backward()
        for (name, parameter), other in zip(whole.named_parameters(), sharded.parameters(), strict=True):
            assert isinstance(other.grad, DTensor), name
            torch.testing.assert_close(other.grad.full_tensor(), parameter.grad)
