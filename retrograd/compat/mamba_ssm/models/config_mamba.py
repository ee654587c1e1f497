"""`mamba_ssm.models.config_mamba`: the configuration of a language model, as in a checkpoint's config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class MambaConfig:
    """A language model of layers of Mamba, Mamba-2 or attention; the fields are those of `retrograd.nn.MambaConfig`.

    `ssm_cfg` and `attn_cfg` are dictionaries of a layer's arguments, `ssm_cfg["layer"]` "Mamba1" or "Mamba2".
    `rms_norm` must be True; `fused_add_norm` has no effect. `MambaLMHeadModel` checks the values.

    Example:
        >>> from retrograd.compat.mamba_ssm.models.config_mamba import MambaConfig
        >>> MambaConfig(d_model=64, n_layer=2, vocab_size=250, ssm_cfg={"layer": "Mamba2"}).padded_vocab_size
        256
    """

    d_model: int = 2560
    d_intermediate: int = 0
    n_layer: int = 64
    vocab_size: int = 50277
    ssm_cfg: dict[str, Any] = field(default_factory=dict)
    attn_layer_idx: list[int] = field(default_factory=list)
    attn_cfg: dict[str, Any] = field(default_factory=dict)
    rms_norm: bool = True
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return math.ceil(self.vocab_size / self.pad_vocab_size_multiple) * self.pad_vocab_size_multiple
