"""The configuration of a Mamba language model, and its form in a checkpoint's config.json."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from retrograd.core.errors import bad_type, bad_value

OURS = "MambaConfig"
# Further keys of config.json: checked when read, written so that state-spaces/mamba can read the file too.
FIXED: Mapping[str, Any] = {"rms_norm": True, "d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}}
EITHER = ("fused_add_norm", "use_fast_path")  # ignored: they choose how the model is computed
SIZES = ("d_model", "n_layer", "vocab_size", "d_state", "d_conv", "expand", "pad_vocab_size_multiple")
SWITCHES = ("conv_bias", "bias", "residual_in_fp32", "tie_embeddings")
NUMBERS = ("dt_min", "dt_max", "dt_scale", "dt_init_floor")
REQUIRED = ("d_model", "n_layer", "vocab_size")
OUTER = ("d_model", "n_layer", "vocab_size", "residual_in_fp32", "pad_vocab_size_multiple", "tie_embeddings")


@dataclass(frozen=True, slots=True)
class MambaConfig:
    """A Mamba language model. Hashable, so that it can be a static argument of `jax.jit`.

    Attributes:
        d_model: channels of the residual stream.
        n_layer: blocks.
        vocab_size: tokens, before padding.
        d_state: states of a channel, N.
        d_conv: width of the convolution, W.
        expand: channels of a block are expand * d_model.
        dt_rank: rank of the projection to dt; ceil(d_model / 16) for "auto".
        dt_min, dt_max: softplus of dt's bias is drawn log-uniformly from this range.
        dt_init_floor: lower bound of what is drawn.
        dt_init: dt's projection is drawn uniformly ("random") or is "constant".
        dt_scale: a factor on the bound of that distribution, or on the constant.
        conv_bias: whether the convolution has a bias.
        bias: whether the input and output projections have a bias.
        residual_in_fp32: whether the residual stream is float32 when activations have 16 bits.
        pad_vocab_size_multiple: the embedding's rows are vocab_size rounded up to a multiple of this.
        tie_embeddings: whether the head shares the embedding's weight.

    Raises:
        ValueError: for sizes below 1, numbers below 0, and values of another type.

    Example:
        >>> from retrograd.nn import MambaConfig
        >>> config = MambaConfig(d_model=768, n_layer=24)  # mamba-130m
        >>> config.d_inner, config.rank, config.padded_vocab_size
        (1536, 48, 50280)
    """

    d_model: int = 768
    n_layer: int = 24
    vocab_size: int = 50277
    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int | Literal["auto"] = "auto"
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init: Literal["random", "constant"] = "random"
    dt_scale: float = 1.0
    dt_init_floor: float = 1e-4
    conv_bias: bool = True
    bias: bool = False
    residual_in_fp32: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        for name in SIZES:
            if not is_size(value := getattr(self, name)):
                raise bad_value(OURS, name, value, "an integer of at least 1")
        if self.dt_rank != "auto" and not is_size(self.dt_rank):
            raise bad_value(OURS, "dt_rank", self.dt_rank, "'auto' or an integer of at least 1")
        for name in SWITCHES:
            if not isinstance(value := getattr(self, name), bool):
                raise bad_value(OURS, name, value, "True or False")
        for name in NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
                raise bad_value(OURS, name, value, "a finite number of at least 0")
        if self.dt_init not in ("random", "constant"):
            raise bad_value(OURS, "dt_init", self.dt_init, "'random' or 'constant'")
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(f"{OURS}: dt_min is {self.dt_min} and dt_max {self.dt_max}, expected 0 < dt_min <= dt_max")

    @property
    def d_inner(self) -> int:
        """Channels of a block."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """dt_rank as a number."""
        return math.ceil(self.d_model / 16) if self.dt_rank == "auto" else self.dt_rank

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        multiple = self.pad_vocab_size_multiple
        return math.ceil(self.vocab_size / multiple) * multiple

    @property
    def ssm_cfg(self) -> dict[str, Any]:
        """The arguments of a `Mamba` block, without d_model."""
        return {name: value for name, value in asdict(self).items() if name not in OUTER}

    def to_dict(self) -> dict[str, Any]:
        """The contents of config.json, in the form of state-spaces/mamba."""
        own = {name: getattr(self, name) for name in OUTER}
        return own | {"ssm_cfg": self.ssm_cfg, "fused_add_norm": True} | dict(FIXED)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> MambaConfig:
        """A config from the contents of config.json.

        Raises:
            ValueError: for an unknown key, a missing size, and a model that does not consist of Mamba-1 blocks with
                RMSNorm.
            TypeError: for anything but a mapping.
        """
        if not isinstance(given, Mapping):
            raise bad_type(OURS, "config", given, "a mapping")
        given = dict(given)
        inner = given.pop("ssm_cfg", None) or {}
        if not isinstance(inner, Mapping):
            raise bad_type(OURS, "ssm_cfg", inner, "a mapping")
        inner = dict(inner)
        if (layer := inner.pop("layer", "Mamba1")) != "Mamba1":
            raise ValueError(f"{OURS}: ssm_cfg's layer is {layer!r}, expected 'Mamba1'")
        for name, expected in FIXED.items():
            value = given.pop(name, expected)
            if value != expected and (value or expected):  # null counts as empty
                raise ValueError(f"{OURS}: {name} is {value!r}, expected {expected!r}")
        for name in EITHER:
            given.pop(name, None)
            inner.pop(name, None)
        known = {field.name for field in fields(cls)}
        for name in sorted((given.keys() - set(OUTER)) | (inner.keys() - (known - set(OUTER)))):
            raise ValueError(f"{OURS}: {name!r} is not known, expected {', '.join(sorted(known))}")
        for name in sorted(set(REQUIRED) - given.keys()):
            raise ValueError(f"{OURS}: {name} is missing")
        return cls(**given, **inner)


def is_size(value: Any, least: int = 1) -> bool:
    """Whether a value is an integer of at least `least`, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
