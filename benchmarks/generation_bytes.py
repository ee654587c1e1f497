"""The bytes that a generated token has to move, from a model's config."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba1Config, Mamba2Config
from retrograd.models.shapes import WIDE, model_shapes

HALF, SINGLE = 2, 4  # bytes of a number in 16 bits, and of a float32


class Moved(NamedTuple):
    """Bytes of a token.

    Attributes:
        weights: read once, whatever the batch. The embedding is read as the head, with which it is one.
        state_read, state_written: of all sequences; of a cache the used slots are read and one is written.
    """

    weights: int
    state_read: int
    state_written: int

    @property
    def all(self) -> int:
        """Their sum."""
        return sum(self)


def moved(config: MambaConfig, batch: int, keys: float) -> Moved:
    """The bytes of a token of `batch` sequences that attend to `keys` keys."""
    layers = [of_layer(config.layer(number), config.d_model, keys) for number in range(config.n_layer)]
    read, written = (round(batch * sum(part)) for part in zip(*layers, strict=True))
    return Moved(weight_bytes(config), read, written)


def weight_bytes(config: MambaConfig) -> int:
    """All parameters; in 16 bits, but for those that are always float32."""
    return sum(
        prod(shape) * (SINGLE if name.rpartition(".")[2] in WIDE else HALF) for name, shape in model_shapes(config)
    )


def of_layer(config: Mamba1Config | Mamba2Config | AttentionConfig, d_model: int, keys: float) -> tuple[float, float]:
    """Bytes of a layer's state that are read and written for one sequence."""
    match config:
        case Mamba1Config():
            channels = config.d_inner(d_model)
            both = HALF * channels * (config.d_conv - 1) + SINGLE * channels * config.d_state
            return both, both
        case Mamba2Config():
            conv = HALF * config.conv_channels(d_model) * (config.d_conv - 1)
            both = conv + SINGLE * config.channels(d_model) * config.d_state
            return both, both
        case AttentionConfig():
            slot = HALF * 2 * config.groups * config.size(d_model)
            conv = HALF * config.qkv_channels(d_model) * (config.d_conv - 1) if config.d_conv else 0
            return slot * keys + conv, slot + conv
