"""`mamba_ssm.models.mixer_seq_simple`: the language model."""

from retrograd.compat.lazy import lazy

__getattr__ = lazy(__name__, {"MambaLMHeadModel": "retrograd.compat.layers.model"})
