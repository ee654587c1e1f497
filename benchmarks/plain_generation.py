"""Generation by PyTorch's own functions: the peer of `nn.generate` in generate.py, with its names of parameters.

A step writes its state in place, so that the whole of it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba1Config, Mamba2Config

EPS = 1e-5  # of all norms
Weights = Mapping[str, Tensor]


class PlainModel:
    """A model and its state, for layers as in generation_shapes.py: Mamba-2 with one group, no bias but convolutions'.

    Attributes:
        tokens: (B,), the tokens that `step` takes, and then those it has chosen.
        logits: (B, padded vocabulary), of the last step.
        position: (1,), how many steps were before.
    """

    def __init__(self, config: MambaConfig, weights: Weights, batch: int, slots: int) -> None:
        self.vocabulary = config.vocab_size
        self.embedding = weights["backbone.embedding.weight"]
        self.head = self.embedding if config.tie_embeddings else weights["lm_head.weight"]
        self.norm_f = weights["backbone.norm_f.weight"]
        device = self.embedding.device
        self.position = torch.zeros(1, device=device, dtype=torch.long)
        self.tokens = torch.zeros(batch, device=device, dtype=torch.long)
        self.logits = torch.zeros(batch, len(self.head), device=device, dtype=self.head.dtype)
        self.layers = [
            Layer(config, number, inside(weights, f"backbone.layers.{number}."), batch, slots, self.position)
            for number in range(config.n_layer)
        ]

    @torch.no_grad()
    def step(self) -> None:
        """One token for each sequence: the likeliest one."""
        stream = self.embedding[self.tokens].float()
        for layer in self.layers:
            stream = layer(stream)
        self.logits.copy_(F.linear(norm(stream, self.norm_f), self.head))
        self.tokens.copy_(self.logits[:, : self.vocabulary].argmax(-1))
        self.position.add_(1)

    def captured(self) -> Callable[[], None]:
        """`step` as a CUDA graph; itself without a GPU. Steps are taken to warm it up."""
        if self.embedding.device.type != "cuda":
            return self.step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def begin(self, position: int) -> None:
        """Go on from a step with caches of random numbers, as a prompt of random tokens would leave them."""
        self.position.fill_(position)
        for layer in self.layers:
            if isinstance(layer.mixer, Attention):
                layer.mixer.k.normal_()
                layer.mixer.v.normal_()


class Layer:
    """Norm, mixer and addition, and the same with an MLP if there is one."""

    def __init__(
        self, config: MambaConfig, number: int, weights: Weights, batch: int, slots: int, position: Tensor
    ) -> None:
        self.weights, self.has_mlp = weights, config.d_intermediate > 0
        own, mixer = config.layer(number), inside(weights, "mixer.")
        self.mixer: Callable[[Tensor], Tensor]
        match own:
            case Mamba1Config():
                self.mixer = Mamba(own, config.d_model, mixer, batch)
            case Mamba2Config():
                self.mixer = Mamba2(own, config.d_model, mixer, batch)
            case AttentionConfig():
                self.mixer = Attention(own, config.d_model, mixer, batch, slots, position)

    def __call__(self, stream: Tensor) -> Tensor:
        weights = self.weights
        stream = stream + self.mixer(norm(stream, weights["norm.weight"]))
        if self.has_mlp:
            h = norm(stream, weights["norm2.weight"])
            x, gate = F.linear(h, weights["mlp.fc1.weight"]).chunk(2, dim=-1)
            stream = stream + F.linear(x * F.silu(gate), weights["mlp.fc2.weight"])
        return stream


class Convolution:
    """A causal convolution of each channel, one step at a time."""

    def __init__(self, weights: Weights, batch: int) -> None:
        self.weight, self.bias = weights["conv1d.weight"].squeeze(1), weights["conv1d.bias"]
        # One slot more than a step needs from before: the new input is written there.
        self.last = torch.zeros(batch, *self.weight.shape, device=self.weight.device, dtype=self.weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        self.last.copy_(torch.cat((self.last[..., 1:], x[..., None]), dim=-1))
        return (self.last * self.weight).sum(-1) + self.bias


class Mamba:
    """Mamba-1's layer; its state is float32."""

    def __init__(self, config: Mamba1Config, d_model: int, weights: Weights, batch: int) -> None:
        self.weights, self.parts = weights, (config.rank(d_model), config.d_state, config.d_state)
        self.conv = Convolution(weights, batch)
        self.A, self.D = -weights["A_log"].float().exp(), weights["D"].float()
        self.state = torch.zeros(batch, *self.A.shape, device=self.A.device)

    def __call__(self, h: Tensor) -> Tensor:
        weights = self.weights
        x, z = F.linear(h, weights["in_proj.weight"]).chunk(2, dim=-1)
        x = F.silu(self.conv(x))
        dt, B, C = F.linear(x, weights["x_proj.weight"]).split(self.parts, dim=-1)
        delta = F.softplus(F.linear(dt, weights["dt_proj.weight"]).float() + weights["dt_proj.bias"].float())
        self.state.mul_((delta[..., None] * self.A).exp())
        self.state.addcmul_((delta * x)[..., None], B[:, None].float())
        y = (self.state @ C[..., None].float())[..., 0] + self.D * x
        return F.linear((y * F.silu(z.float())).to(x.dtype), weights["out_proj.weight"])


class Mamba2:
    """Mamba-2's layer with one group; its state is float32."""

    def __init__(self, config: Mamba2Config, d_model: int, weights: Weights, batch: int) -> None:
        if config.ngroups != 1:
            raise ValueError(f"ngroups is {config.ngroups}, expected 1")
        self.weights, self.heads, self.size = weights, config.heads(d_model), config.headdim
        inner = config.channels(d_model)
        self.projected = (inner, inner + 2 * config.d_state, self.heads)
        self.parts = (inner, config.d_state, config.d_state)
        self.conv = Convolution(weights, batch)
        self.A, self.D = -weights["A_log"].float().exp(), weights["D"].float()
        self.state = torch.zeros(batch, self.heads, self.size, config.d_state, device=self.A.device)

    def __call__(self, h: Tensor) -> Tensor:
        weights = self.weights
        z, xBC, dt = F.linear(h, weights["in_proj.weight"]).split(self.projected, dim=-1)
        x, B, C = F.silu(self.conv(xBC)).float().split(self.parts, dim=-1)
        x = x.unflatten(-1, (self.heads, self.size))
        delta = F.softplus(dt.float() + weights["dt_bias"])[..., None]
        self.state.mul_((delta * self.A[:, None]).exp()[..., None])
        self.state.addcmul_((delta * x)[..., None], B[:, None, None])
        y = (self.state @ C[:, None, :, None])[..., 0] + self.D[:, None] * x
        gated = y.flatten(-2).to(h.dtype).float() * F.silu(z.float())
        return F.linear(norm(gated, weights["norm.weight"]), weights["out_proj.weight"])


class Attention:
    """Attention of one query to a cache of fixed size, of which a mask hides what is not yet written."""

    def __init__(
        self, config: AttentionConfig, d_model: int, weights: Weights, batch: int, slots: int, position: Tensor
    ) -> None:
        self.weights, self.position = weights, position
        self.size, self.rotated = config.size(d_model), config.rotary_emb_dim
        self.heads, self.groups = config.num_heads, config.groups
        self.conv = Convolution(weights, batch) if config.d_conv else None
        place: dict[str, Any] = {"device": position.device, "dtype": weights["in_proj.weight"].dtype}
        self.k, self.v = (torch.zeros(batch, self.groups, slots, self.size, **place) for _ in range(2))
        self.slot = torch.arange(slots, device=position.device)
        d = self.rotated
        rates = config.rotary_emb_base ** -(torch.arange(0, d, 2, device=position.device, dtype=torch.float64) / d)
        angle = self.slot[:, None] * rates
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def __call__(self, h: Tensor) -> Tensor:
        qkv = F.linear(h, self.weights["in_proj.weight"])
        if self.conv is not None:
            qkv = self.conv(qkv)
        q, k, v = qkv.unflatten(-1, (-1, 1, self.size)).split((self.heads, self.groups, self.groups), dim=1)
        self.k.index_copy_(2, self.position, self._rotate(k))
        self.v.index_copy_(2, self.position, v)
        y = F.scaled_dot_product_attention(
            self._rotate(q),
            self.k,
            self.v,
            attn_mask=(self.slot <= self.position)[None, None, None],
            enable_gqa=self.groups < self.heads,
        )
        return F.linear(y.flatten(1), self.weights["out_proj.weight"])

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotary position embedding of the first channels, in two halves, computed in float32."""
        cos, sin = self.cos[self.position], self.sin[self.position]
        a, b = x[..., : self.rotated].float().chunk(2, dim=-1)
        return torch.cat(((a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype), x[..., self.rotated :]), -1)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """F.rms_norm of float32, in the weight's dtype."""
    return F.rms_norm(x, weight.shape, weight.float(), EPS).to(weight.dtype)


def inside(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
