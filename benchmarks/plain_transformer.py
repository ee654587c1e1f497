"""A transformer of PyTorch's own functions: the peer of retrograd.nn's in models.py, with its names of parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig


class Transformer(nn.Module):
    """Tokens (B, T) to logits, for T = time."""

    def __init__(self, config: MambaConfig, time: int, **place: Any) -> None:
        super().__init__()
        self.backbone = Backbone(config, time, **place)
        self.lm_head = nn.Linear(config.d_model, config.padded_vocab_size, bias=False, **place)
        self.lm_head.weight = self.backbone.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.backbone(tokens))


class Backbone(nn.Module):
    """The layers, on a residual stream in float32."""

    def __init__(self, config: MambaConfig, time: int, **place: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model, **place)
        self.layers = nn.ModuleList(Block(config, **place) for _ in range(config.n_layer))
        self.norm_f = Norm(config.d_model, **place)
        attention = config.layer(0)
        assert isinstance(attention, AttentionConfig)
        d = attention.rotary_emb_dim
        rates = attention.rotary_emb_base ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(time)[:, None] * rates
        self.register_buffer("cos", angle.cos().float().to(place.get("device")), persistent=False)
        self.register_buffer("sin", angle.sin().float().to(place.get("device")), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.embedding(tokens).float()
        for block in self.layers:
            stream = block(stream, self.cos, self.sin)
        return self.norm_f(stream)


class Norm(nn.Module):
    """F.rms_norm of the stream, in the weight's dtype."""

    def __init__(self, d: int, **place: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d, **place))

    def forward(self, stream: Tensor) -> Tensor:
        return F.rms_norm(stream, self.weight.shape, self.weight.float(), 1e-5).to(self.weight.dtype)


class Block(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self, config: MambaConfig, **place: Any) -> None:
        super().__init__()
        d = config.d_model
        attention = config.layer(0)
        assert isinstance(attention, AttentionConfig)
        self.norm, self.norm2 = Norm(d, **place), Norm(d, **place)
        self.mixer = Attention(d, attention, **place)
        self.mlp = nn.Module()
        self.mlp.fc1 = nn.Linear(d, 2 * config.mlp_channels, bias=False, **place)
        self.mlp.fc2 = nn.Linear(config.mlp_channels, d, bias=False, **place)

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        stream = stream + self.mixer(self.norm(stream), cos, sin)
        x, gate = self.mlp.fc1(self.norm2(stream)).chunk(2, dim=-1)
        return stream + self.mlp.fc2(x * F.silu(gate))


class Attention(nn.Module):
    """Causal attention with grouped heads, by cuDNN; all channels of a head are rotated, in two halves."""

    def __init__(self, d_model: int, config: AttentionConfig, **place: Any) -> None:
        super().__init__()
        self.size, self.heads, self.groups = config.size(d_model), config.num_heads, config.groups
        if config.rotary_emb_dim != self.size:
            raise ValueError(f"rotary_emb_dim is {config.rotary_emb_dim}, expected the size of a head, {self.size}")
        self.in_proj = nn.Linear(d_model, config.qkv_channels(d_model), bias=False, **place)
        self.out_proj = nn.Linear(self.heads * self.size, d_model, bias=False, **place)

    def forward(self, u: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.in_proj(u).unflatten(-1, (-1, self.size)).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.groups, self.groups), dim=1)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = F.scaled_dot_product_attention(
                rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True
            )
        return self.out_proj(y.transpose(1, 2).flatten(-2))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, computed in float32."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
