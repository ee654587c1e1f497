"""The layers and models of retrograd.nn by their definitions, step by step, from a dictionary of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.models.layers import MixerConfig
from retrograd.nn import AttentionConfig, GatedDeltaNetConfig, Mamba1Config, Mamba2Config, MambaConfig
from retrograd.ops.selective_scan.reference import selective_scan

Weights = Mapping[str, Tensor]


def below(p: Weights, prefix: str) -> dict[str, Tensor]:
    """The parameters of a module within another."""
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def linear(p: Weights, name: str, u: Tensor) -> Tensor:
    return F.linear(u, p[f"{name}.weight"], p.get(f"{name}.bias"))


def norm(x: Tensor, weight: Tensor, groups: int = 1, eps: float = 1e-5) -> Tensor:
    parts = x.unflatten(-1, (groups, -1))
    return (parts / torch.sqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight


def convolved(p: Weights, x: Tensor) -> Tensor:
    weight = p["conv1d.weight"]
    padded = F.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
    return F.conv1d(padded, weight, p.get("conv1d.bias"), groups=len(weight)).transpose(1, 2)


def mamba(p: Weights, config: Mamba1Config, u: Tensor) -> Tensor:
    x, z = linear(p, "in_proj", u).chunk(2, dim=-1)
    x = F.silu(convolved(p, x))
    rank = p["dt_proj.weight"].shape[1]
    dt, B, C = linear(p, "x_proj", x).split((rank, config.d_state, config.d_state), dim=-1)
    dt, A = dt @ p["dt_proj.weight"].T, -torch.exp(p["A_log"])
    y = selective_scan(x, dt, A, B, C, D=p["D"], z=z, dt_bias=p["dt_proj.bias"], dt_softplus=True)
    assert isinstance(y, Tensor)
    return linear(p, "out_proj", y)


def mamba2(p: Weights, config: Mamba2Config, u: Tensor) -> Tensor:
    heads, P, G, N = len(p["A_log"]), config.headdim, config.ngroups, config.d_state
    channels = heads * P
    beside = config.expand * u.shape[-1] - channels
    parts = (beside, beside, channels, channels + 2 * G * N, heads)
    z0, x0, z, xBC, dt = linear(p, "in_proj", u).split(parts, dim=-1)
    x, B, C = F.silu(convolved(p, xBC)).split((channels, G * N, G * N), dim=-1)
    delta = F.softplus(dt + p["dt_bias"]).clamp(*config.dt_limit)
    x = x.unflatten(-1, (heads, P))
    B, C = (t.unflatten(-1, (G, N)).repeat_interleave(heads // G, dim=2) for t in (B, C))
    D = p["D"].reshape(heads, -1)
    h, rows = torch.zeros(len(u), heads, P, N, dtype=u.dtype), []
    for t in range(u.shape[1]):
        decay = torch.exp(-delta[:, t] * torch.exp(p["A_log"]))
        h = decay[..., None, None] * h + torch.einsum("bh,bhp,bhn->bhpn", delta[:, t], x[:, t], B[:, t])
        rows.append(torch.einsum("bhpn,bhn->bhp", h, C[:, t]) + D * x[:, t])
    y = torch.stack(rows, 1).flatten(2)
    if not config.rmsnorm:
        y = y * F.silu(z)
    elif config.norm_before_gate:
        y = norm(y, p["norm.weight"], G) * F.silu(z)
    else:
        y = norm(y * F.silu(z), p["norm.weight"], G)
    return linear(p, "out_proj", torch.cat((F.silu(z0) * x0, y), dim=-1))


def gated_delta_net(p: Weights, config: GatedDeltaNetConfig, u: Tensor) -> Tensor:
    H, G, K, V = config.num_heads, config.num_heads_qk or config.num_heads, config.head_dim_qk, config.head_dim_v
    qkv, z, b, a = linear(p, "in_proj", u).split((2 * G * K + H * V, H * V, H, H), dim=-1)
    q, k, v = F.silu(convolved(p, qkv)).split((G * K, G * K, H * V), dim=-1)
    q, k = (t.unflatten(-1, (G, K)).repeat_interleave(H // G, dim=2) for t in (q, k))
    q, k = (t / torch.sqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    v, decay = v.unflatten(-1, (H, V)), torch.exp(-torch.exp(p["A_log"]) * F.softplus(a + p["dt_bias"]))
    beta = (2 if config.negative_eigenvalues else 1) * torch.sigmoid(b)
    S, rows = torch.zeros(len(u), H, V, K, dtype=u.dtype), []
    for t in range(u.shape[1]):
        S = decay[:, t, :, None, None] * S
        wrong = v[:, t] - torch.einsum("bhvk,bhk->bhv", S, k[:, t])
        S = S + torch.einsum("bh,bhv,bhk->bhvk", beta[:, t], wrong, k[:, t])
        rows.append(torch.einsum("bhvk,bhk->bhv", S, q[:, t]) / math.sqrt(K))
    y = norm(torch.stack(rows, 1), p["norm.weight"], eps=config.norm_eps) * F.silu(z.unflatten(-1, (H, V)))
    return linear(p, "out_proj", y.flatten(2))


def rotated(x: Tensor, config: AttentionConfig) -> Tensor:
    """By complex numbers: channel pair i of step t turns by t / base^(2 i / d)."""
    d = config.rotary_emb_dim
    i = torch.arange(d // 2, dtype=torch.float64)
    angle = torch.arange(x.shape[1])[:, None] / config.rotary_emb_base ** (2 * i / d)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    real = torch.arange(0, d, 2) if config.rotary_emb_interleaved else torch.arange(d // 2)
    imaginary = real + (1 if config.rotary_emb_interleaved else d // 2)
    turned = torch.complex(x[..., real], x[..., imaginary]) * turn
    out = x.clone()
    out[..., real], out[..., imaginary] = turned.real, turned.imag
    return out


def attention(p: Weights, config: AttentionConfig, u: Tensor) -> Tensor:
    H, G = config.num_heads, config.num_heads_kv or config.num_heads
    P = config.head_dim or u.shape[-1] // H
    parts = ((H + 2 * G) * P, config.mlp_channels // 2, config.mlp_channels // 2)
    qkv, up, gate = linear(p, "in_proj", u).split(parts, dim=-1)
    if config.d_conv:
        qkv = convolved(p, qkv)
    q, k, v = (t.unflatten(-1, (-1, P)) for t in qkv.split((H * P, G * P, G * P), dim=-1))
    if config.qk_norm:
        q, k = norm(q, p["q_norm.weight"]), norm(k, p["k_norm.weight"])
    q, k = rotated(q, config), rotated(k, config)
    scale = 1 / math.sqrt(P) if config.softmax_scale is None else config.softmax_scale
    rows = []
    for t in range(u.shape[1]):
        first = 0 if config.window is None else max(0, t - config.window)
        heads = []
        for head in range(H):
            group = head // (H // G)
            scores = scale * torch.einsum("bp,bsp->bs", q[:, t, head], k[:, first : t + 1, group])
            heads.append(torch.einsum("bs,bsp->bp", scores.softmax(-1), v[:, first : t + 1, group]))
        rows.append(torch.cat(heads, -1))
    return linear(p, "out_proj", torch.cat((torch.stack(rows, 1), up * F.silu(gate)), dim=-1))


def mixed(p: Weights, config: MixerConfig, u: Tensor) -> Tensor:
    """The output of a layer, u (B, T, d_model)."""
    match config:
        case Mamba1Config():
            return mamba(p, config, u)
        case Mamba2Config():
            return mamba2(p, config, u)
        case GatedDeltaNetConfig():
            return gated_delta_net(p, config, u)
        case AttentionConfig():
            return attention(p, config, u)


def logits(p: Weights, config: MambaConfig, ids: Tensor) -> Tensor:
    stream = p["backbone.embedding.weight"][ids]
    for number in range(config.n_layer):
        own = below(p, f"backbone.layers.{number}.")
        stream = stream + mixed(below(own, "mixer."), config.layer(number), norm(stream, own["norm.weight"]))
        if config.d_intermediate:
            u, gate = linear(own, "mlp.fc1", norm(stream, own["norm2.weight"])).chunk(2, dim=-1)
            stream = stream + linear(own, "mlp.fc2", u * F.silu(gate))
    head = p["backbone.embedding.weight" if config.tie_embeddings else "lm_head.weight"]
    return norm(stream, p["backbone.norm_f.weight"]) @ head.T
