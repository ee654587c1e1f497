"""Names and shapes of a model's parameters, from its config alone, without building a module."""

from __future__ import annotations

from collections.abc import Iterator

from .config import MambaConfig
from .layers import AttentionConfig, GatedDeltaNetConfig, Mamba1Config, Mamba2Config, MixerConfig

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

EMBEDDING_STD = 0.02  # standard deviation of an embedding's initial values

WIDE = ("A_log", "D", "dt_bias")  # parameters that are float32 in a model of 16 bits, too

EMBEDDING, NORM, HEAD = "backbone.embedding.weight", "backbone.norm_f.weight", "lm_head.weight"


def layer_prefix(number: int) -> str:
    """The prefix of the names of a layer's parameters."""
    return f"backbone.layers.{number}."


def mamba1_shapes(config: Mamba1Config, d_model: int) -> Shapes:
    """Names and shapes of the parameters of a Mamba-1 layer."""
    inner, N, R = config.d_inner(d_model), config.d_state, config.rank(d_model)
    shapes: Shapes = {
        "in_proj.weight": (2 * inner, d_model),
        "conv1d.weight": (inner, 1, config.d_conv),
        "x_proj.weight": (R + 2 * N, inner),
        "dt_proj.weight": (inner, R),
        "dt_proj.bias": (inner,),
        "A_log": (inner, N),
        "D": (inner,),
        "out_proj.weight": (d_model, inner),
    }
    if config.conv_bias:
        shapes["conv1d.bias"] = (inner,)
    if config.bias:
        shapes |= {"in_proj.bias": (2 * inner,), "out_proj.bias": (d_model,)}
    return shapes


def mamba2_shapes(config: Mamba2Config, d_model: int) -> Shapes:
    """Names and shapes of the parameters of a Mamba-2 layer."""
    inner, channels, heads = config.d_inner(d_model), config.channels(d_model), config.heads(d_model)
    of_conv = config.conv_channels(d_model)
    projected = 2 * config.mlp_channels(d_model) + channels + of_conv + heads
    shapes: Shapes = {
        "in_proj.weight": (projected, d_model),
        "conv1d.weight": (of_conv, 1, config.d_conv),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (channels,) if config.D_has_hdim else (heads,),
        "out_proj.weight": (d_model, inner),
    }
    if config.rmsnorm:
        shapes["norm.weight"] = (channels,)
    if config.conv_bias:
        shapes["conv1d.bias"] = (of_conv,)
    if config.bias:
        shapes |= {"in_proj.bias": (projected,), "out_proj.bias": (d_model,)}
    return shapes


def gated_delta_net_shapes(config: GatedDeltaNetConfig, d_model: int) -> Shapes:
    """Names and shapes of the parameters of a layer of the gated delta rule."""
    projected, heads = sum(config.parts), config.num_heads
    shapes: Shapes = {
        "in_proj.weight": (projected, d_model),
        "conv1d.weight": (config.conv_channels, 1, config.d_conv),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "norm.weight": (config.head_dim_v,),
        "out_proj.weight": (d_model, config.value_channels),
    }
    if config.conv_bias:
        shapes["conv1d.bias"] = (config.conv_channels,)
    if config.bias:
        shapes |= {"in_proj.bias": (projected,), "out_proj.bias": (d_model,)}
    return shapes


def attention_shapes(config: AttentionConfig, d_model: int) -> Shapes:
    """Names and shapes of the parameters of a layer of attention."""
    qkv, size, mlp = config.qkv_channels(d_model), config.size(d_model), config.mlp_channels
    shapes: Shapes = {
        "in_proj.weight": (qkv + mlp, d_model),
        "out_proj.weight": (d_model, config.num_heads * size + mlp // 2),
    }
    if config.qkv_proj_bias:
        shapes["in_proj.bias"] = (qkv + mlp,)
    if config.out_proj_bias:
        shapes["out_proj.bias"] = (d_model,)
    if config.d_conv:
        shapes |= {"conv1d.weight": (qkv, 1, config.d_conv), "conv1d.bias": (qkv,)}
    if config.qk_norm:
        shapes |= {"q_norm.weight": (size,), "k_norm.weight": (size,)}
    return shapes


def mlp_shapes(d_model: int, channels: int) -> Shapes:
    """Names and shapes of the parameters of a gated MLP."""
    return {"fc1.weight": (2 * channels, d_model), "fc2.weight": (d_model, channels)}


def mixer_shapes(config: MixerConfig, d_model: int) -> Shapes:
    """Names and shapes of the parameters of a layer that mixes along time."""
    match config:
        case Mamba1Config():
            return mamba1_shapes(config, d_model)
        case Mamba2Config():
            return mamba2_shapes(config, d_model)
        case GatedDeltaNetConfig():
            return gated_delta_net_shapes(config, d_model)
        case AttentionConfig():
            return attention_shapes(config, d_model)


def block_shapes(config: MambaConfig, number: int) -> Shapes:
    """Names and shapes of the parameters of a layer with its norms and its MLP."""
    d = config.d_model
    shapes: Shapes = {"norm.weight": (d,)}
    shapes |= {f"mixer.{name}": shape for name, shape in mixer_shapes(config.layer(number), d).items()}
    if config.d_intermediate:
        shapes["norm2.weight"] = (d,)
        shapes |= {f"mlp.{name}": shape for name, shape in mlp_shapes(d, config.mlp_channels).items()}
    return shapes


def model_shapes(config: MambaConfig) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of a language model's parameters; a tied head is the embedding and is not listed again."""
    table = (config.padded_vocab_size, config.d_model)
    yield EMBEDDING, table
    yield NORM, (config.d_model,)
    for number in range(config.n_layer):
        for name, shape in block_shapes(config, number).items():
            yield layer_prefix(number) + name, shape
    if not config.tie_embeddings:
        yield HEAD, table
