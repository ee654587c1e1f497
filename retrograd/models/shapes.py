"""Names and shapes of a model's parameters, from its config alone, without building a module."""

from __future__ import annotations

from collections.abc import Iterator

from .config import MambaConfig

Shape = tuple[int, ...]

EMBEDDING_STD = 0.02  # standard deviation of an embedding's initial values

EMBEDDING, NORM, HEAD = "backbone.embedding.weight", "backbone.norm_f.weight", "lm_head.weight"


def layer_prefix(number: int) -> str:
    """The prefix of the names of a layer's parameters."""
    return f"backbone.layers.{number}."


def mamba_shapes(config: MambaConfig) -> dict[str, Shape]:
    """Names and shapes of a Mamba block's parameters."""
    d, inner, N, R = config.d_model, config.d_inner, config.d_state, config.rank
    shapes: dict[str, Shape] = {
        "in_proj.weight": (2 * inner, d),
        "conv1d.weight": (inner, 1, config.d_conv),
        "x_proj.weight": (R + 2 * N, inner),
        "dt_proj.weight": (inner, R),
        "dt_proj.bias": (inner,),
        "A_log": (inner, N),
        "D": (inner,),
        "out_proj.weight": (d, inner),
    }
    if config.conv_bias:
        shapes["conv1d.bias"] = (inner,)
    if config.bias:
        shapes |= {"in_proj.bias": (2 * inner,), "out_proj.bias": (d,)}
    return shapes


def block_shapes(config: MambaConfig) -> dict[str, Shape]:
    """Names and shapes of a layer's parameters."""
    mixer = {f"mixer.{name}": shape for name, shape in mamba_shapes(config).items()}
    return {"norm.weight": (config.d_model,)} | mixer


def model_shapes(config: MambaConfig) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of a language model's parameters; a tied head is the embedding and is not listed again."""
    table = (config.padded_vocab_size, config.d_model)
    yield EMBEDDING, table
    yield NORM, (config.d_model,)
    block = block_shapes(config)
    for number in range(config.n_layer):
        for name, shape in block.items():
            yield layer_prefix(number) + name, shape
    if not config.tie_embeddings:
        yield HEAD, table
