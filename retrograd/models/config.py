"""The configuration of a language model, and its form in a checkpoint's config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args

from retrograd.core.errors import bad_type, bad_value

from .layers import AttentionConfig, Mamba1Config, MixerConfig, RecurrentConfig, is_size

SSM: Mapping[str, type[RecurrentConfig]] = {config.layer: config for config in get_args(RecurrentConfig)}


@dataclass(frozen=True, slots=True)
class MambaConfig:
    """A language model of layers, of which each mixes along time by a recurrence or by attention.

    The fields are those of state-spaces/mamba. A transformer is the model whose layers all are attention. Hashable, so
    that it can be a static argument of `jax.jit`.

    Attributes:
        d_model: channels of the residual stream.
        n_layer: layers.
        vocab_size: tokens, before padding.
        d_intermediate: channels of the gated MLP after each mixing layer, rounded up to a multiple of 128; 0 for none.
        ssm_cfg: of the layers that are a recurrence: Mamba, Mamba-2, or the gated delta rule.
        attn_layer_idx: numbers of the layers that are attention, from 0.
        attn_cfg: of these; needed if there are any.
        residual_in_fp32: whether the residual stream is float32 when activations have 16 bits.
        pad_vocab_size_multiple: the embedding's rows are vocab_size rounded up to a multiple of this.
        tie_embeddings: whether the head shares the embedding's weight.

    Raises:
        ValueError, TypeError: for sizes below 1, layers that there are not, and values of another type.

    Example:
        >>> from retrograd.nn import AttentionConfig, Mamba2Config, MambaConfig
        >>> config = MambaConfig(d_model=768, n_layer=24)  # mamba-130m
        >>> config.padded_vocab_size
        50280
        >>> attention = AttentionConfig(num_heads=12, rotary_emb_dim=32)
        >>> hybrid = MambaConfig(ssm_cfg=Mamba2Config(), attn_layer_idx=(5, 11), attn_cfg=attention, n_layer=12)
        >>> transformer = MambaConfig(attn_layer_idx=range(12), attn_cfg=attention, d_intermediate=2048, n_layer=12)
    """

    d_model: int = 768
    n_layer: int = 24
    vocab_size: int = 50277
    d_intermediate: int = 0
    ssm_cfg: RecurrentConfig = field(default_factory=Mamba1Config)
    attn_layer_idx: tuple[int, ...] = ()
    attn_cfg: AttentionConfig | None = None
    residual_in_fp32: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True

    REQUIRED: ClassVar = ("d_model", "n_layer", "vocab_size")
    FIXED: ClassVar[Mapping[str, Any]] = {"rms_norm": True}  # of config.json: written, and the only value that is read
    IGNORED: ClassVar = ("fused_add_norm",)  # how it is computed

    def __post_init__(self) -> None:
        name = type(self).__name__
        for size in ("d_model", "n_layer", "vocab_size", "pad_vocab_size_multiple"):
            if not is_size(value := getattr(self, size)):
                raise bad_value(name, size, value, "an integer of at least 1")
        if not is_size(self.d_intermediate, 0):
            raise bad_value(name, "d_intermediate", self.d_intermediate, "an integer of at least 0")
        for switch in ("residual_in_fp32", "tie_embeddings"):
            if not isinstance(value := getattr(self, switch), bool):
                raise bad_value(name, switch, value, "True or False")
        if not isinstance(self.ssm_cfg, RecurrentConfig):
            raise bad_type(name, "ssm_cfg", self.ssm_cfg, "a Mamba1Config, Mamba2Config or GatedDeltaNetConfig")
        if self.attn_cfg is not None and not isinstance(self.attn_cfg, AttentionConfig):
            raise bad_type(name, "attn_cfg", self.attn_cfg, "an AttentionConfig")
        self._check_layers()

    def _check_layers(self) -> None:
        name, given = type(self).__name__, self.attn_layer_idx
        if isinstance(given, str | bytes) or not isinstance(given, tuple | list | range | set | frozenset):
            raise bad_type(name, "attn_layer_idx", given, "numbers of layers")
        if not all(is_size(number, 0) and number < self.n_layer for number in given):
            raise bad_value(name, "attn_layer_idx", given, f"numbers from 0 to {self.n_layer - 1}")
        object.__setattr__(self, "attn_layer_idx", tuple(sorted(set(given))))
        if self.attn_layer_idx and self.attn_cfg is None:
            raise bad_value(name, "attn_cfg", None, f"an AttentionConfig for layers {self.attn_layer_idx}")
        if self.attn_layer_idx and self.attn_cfg is not None:
            self.attn_cfg.check(self.d_model)
        if len(self.attn_layer_idx) < self.n_layer:
            self.ssm_cfg.check(self.d_model)

    def layer(self, number: int) -> MixerConfig:
        """The configuration of a layer that mixes along time."""
        if number in self.attn_layer_idx:
            assert self.attn_cfg is not None
            return self.attn_cfg
        return self.ssm_cfg

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        multiple = self.pad_vocab_size_multiple
        return math.ceil(self.vocab_size / multiple) * multiple

    @property
    def mlp_channels(self) -> int:
        """d_intermediate rounded up."""
        return -(-self.d_intermediate // 128) * 128

    @property
    def additions(self) -> int:
        """How often a layer's output is added to the residual stream, in all layers."""
        return self.n_layer * (2 if self.d_intermediate else 1)

    def to_dict(self) -> dict[str, Any]:
        """The contents of config.json, in the form of state-spaces/mamba."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        own["ssm_cfg"] = {"layer": self.ssm_cfg.layer, **self.ssm_cfg.to_dict()}
        own["attn_cfg"] = self.attn_cfg.to_dict() if self.attn_cfg else {}
        own["attn_layer_idx"] = list(self.attn_layer_idx)
        return own | {"fused_add_norm": True} | dict(self.FIXED)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> MambaConfig:
        """A config from the contents of config.json.

        Raises:
            ValueError: for an unknown key, a missing size, and a model of other layers or norms.
            TypeError: for anything but a mapping.
        """
        name = cls.__name__
        if not isinstance(given, Mapping):
            raise bad_type(name, "config", given, "a mapping")
        values = {key: value for key, value in given.items() if key not in cls.IGNORED}
        for key, expected in cls.FIXED.items():
            if (value := values.pop(key, expected)) != expected:
                raise bad_value(name, key, value, repr(expected))
        known = {f.name for f in fields(cls)}
        for key in sorted(values.keys() - known):
            raise ValueError(f"{name}: {key!r} is not known, expected {', '.join(sorted(known))}")
        for key in sorted(set(cls.REQUIRED) - values.keys()):
            raise ValueError(f"{name}: {key} is missing")
        ssm, attention = values.pop("ssm_cfg", None) or {}, values.pop("attn_cfg", None) or {}
        values["attn_layer_idx"] = values.get("attn_layer_idx") or ()  # null counts as none
        return cls(
            **values, ssm_cfg=_ssm(name, ssm), attn_cfg=AttentionConfig.from_dict(attention) if attention else None
        )


def _ssm(name: str, given: Any) -> RecurrentConfig:
    if not isinstance(given, Mapping):
        raise bad_type(name, "ssm_cfg", given, "a mapping")
    if (layer := given.get("layer", Mamba1Config.layer)) not in SSM:
        raise bad_value(name, "ssm_cfg['layer']", layer, " or ".join(map(repr, SSM)))
    return SSM[layer].from_dict(given)
