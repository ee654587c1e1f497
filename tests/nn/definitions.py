"""Language models by the definitions of papers: PyTorch's operations, step by step, in the dtype of the weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba1Config, Mamba2Config
from retrograd.models.shapes import EMBEDDING, HEAD, NORM, layer_prefix
from retrograd.testing.draw import Arrays


def logits(weights: Arrays, config: MambaConfig, tokens: Tensor) -> Tensor:
    """(B, T) tokens -> (B, T, padded vocabulary)."""
    stream = weights[EMBEDDING][tokens]
    for number in range(config.n_layer):
        own = under(weights, layer_prefix(number))
        stream = stream + mixed(under(own, "mixer."), config.layer(number), norm(stream, own["norm.weight"]))
        if config.d_intermediate:
            stream = stream + gated_mlp(under(own, "mlp."), norm(stream, own["norm2.weight"]))
    return norm(stream, weights[NORM]) @ weights.get(HEAD, weights[EMBEDDING]).T


def under(weights: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def gated_mlp(w: Arrays, x: Tensor) -> Tensor:
    h, gate = (x @ w["fc1.weight"].T).chunk(2, dim=-1)
    return (h * F.silu(gate)) @ w["fc2.weight"].T


def mixed(w: Arrays, config: Mamba1Config | Mamba2Config | AttentionConfig, u: Tensor) -> Tensor:
    match config:
        case Mamba1Config():
            return mamba1(w, config, u)
        case Mamba2Config():
            return mamba2(w, config, u)
        case AttentionConfig():
            return attention(w, config, u)


def linear(w: Arrays, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def convolved(w: Arrays, x: Tensor) -> Tensor:
    weight = w["conv1d.weight"]
    past = F.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
    return F.conv1d(past, weight, w.get("conv1d.bias"), groups=weight.shape[0]).transpose(1, 2)


def mamba1(w: Arrays, config: Mamba1Config, u: Tensor) -> Tensor:
    R, N = config.rank(u.shape[-1]), config.d_state
    x, z = linear(w, "in_proj", u).chunk(2, dim=-1)
    x = F.silu(convolved(w, x))
    dt, input_matrix, output_matrix = (x @ w["x_proj.weight"].T).split((R, N, N), dim=-1)
    delta = F.softplus(dt @ w["dt_proj.weight"].T + w["dt_proj.bias"])
    h, ys = torch.zeros(1, dtype=u.dtype), []
    for t in range(u.shape[1]):
        step = delta[:, t, :, None]
        h = torch.exp(-step * w["A_log"].exp()) * h + step * input_matrix[:, t, None] * x[:, t, :, None]
        ys.append((h * output_matrix[:, t, None]).sum(-1))
    y = (torch.stack(ys, dim=1) + w["D"] * x) * F.silu(z)
    return linear(w, "out_proj", y)


def mamba2(w: Arrays, config: Mamba2Config, u: Tensor) -> Tensor:
    d = u.shape[-1]
    mlp, channels, heads = config.mlp_channels(d), config.channels(d), config.heads(d)
    groups, N, P = config.ngroups, config.d_state, config.headdim
    parts = linear(w, "in_proj", u).split((mlp, mlp, channels, channels + 2 * groups * N, heads), dim=-1)
    mlp_gate, beside, z, x, dt = parts
    x, input_matrix, output_matrix = F.silu(convolved(w, x)).split((channels, groups * N, groups * N), dim=-1)
    x = x.unflatten(-1, (heads, P))
    input_matrix, output_matrix = (
        matrix.unflatten(-1, (groups, N)).repeat_interleave(heads // groups, dim=-2)
        for matrix in (input_matrix, output_matrix)
    )
    delta = F.softplus(dt + w["dt_bias"]).clamp(*config.dt_limit)
    h, ys = torch.zeros(1, dtype=u.dtype), []
    for t in range(u.shape[1]):
        step = delta[:, t, :, None, None]
        decay = torch.exp(-step * w["A_log"].exp()[:, None, None])
        h = decay * h + step * x[:, t, ..., None] * input_matrix[:, t, :, None]
        ys.append((h * output_matrix[:, t, :, None]).sum(-1))
    skip = w["D"].view(heads, P) if config.D_has_hdim else w["D"][:, None]
    y = (torch.stack(ys, dim=1) + skip * x).flatten(-2)
    by_group = (groups, channels // groups)
    if not config.rmsnorm:
        y = y * F.silu(z)
    elif config.norm_before_gate:
        y = norm(y.unflatten(-1, by_group), w["norm.weight"].view(by_group)).flatten(-2) * F.silu(z)
    else:
        y = norm((y * F.silu(z)).unflatten(-1, by_group), w["norm.weight"].view(by_group)).flatten(-2)
    return linear(w, "out_proj", torch.cat((F.silu(mlp_gate) * beside, y), dim=-1))


def attention(w: Arrays, config: AttentionConfig, u: Tensor) -> Tensor:
    size, groups, heads = config.size(u.shape[-1]), config.groups, config.num_heads
    half = config.mlp_channels // 2
    qkv, up, gate = linear(w, "in_proj", u).split((config.qkv_channels(u.shape[-1]), half, half), dim=-1)
    if config.d_conv:
        qkv = convolved(w, qkv)
    q, k, v = (x.unflatten(-1, (-1, size)) for x in qkv.split((heads * size, groups * size, groups * size), dim=-1))
    if config.qk_norm:
        q, k = norm(q, w["q_norm.weight"]), norm(k, w["k_norm.weight"])
    q, k = rotated(q, config), rotated(k, config)
    k, v = (x.repeat_interleave(heads // groups, dim=2) for x in (k, v))
    scale = size**-0.5 if config.softmax_scale is None else config.softmax_scale
    scores = scale * torch.einsum("bihd,bjhd->bhij", q, k)
    place = torch.arange(u.shape[1])
    before = place[:, None] - place
    hidden = (before < 0) | (before > (config.window or u.shape[1]))
    p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    y = torch.einsum("bhij,bjhd->bihd", p, v).flatten(-2)
    return linear(w, "out_proj", torch.cat((y, up * F.silu(gate)), dim=-1))


def rotated(x: Tensor, config: AttentionConfig) -> Tensor:
    """Pairs of channels as complex numbers, times numbers of the unit circle."""
    size = config.rotary_emb_dim
    if not size:
        return x
    turned, rest = x[..., :size], x[..., size:]
    if config.rotary_emb_interleaved:
        pairs = torch.complex(turned[..., ::2].contiguous(), turned[..., 1::2].contiguous())
    else:
        pairs = torch.complex(*(half.contiguous() for half in turned.chunk(2, dim=-1)))
    frequency = config.rotary_emb_base ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * frequency
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    both = (pairs.real, pairs.imag)
    turned = torch.stack(both, dim=-1).flatten(-2) if config.rotary_emb_interleaved else torch.cat(both, dim=-1)
    return torch.cat((turned, rest), dim=-1)
