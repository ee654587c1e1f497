"""`mamba_ssm.modules.mamba_simple`: the layer of Mamba-1."""

from retrograd.compat.lazy import lazy

__getattr__ = lazy(__name__, {"Mamba": "retrograd.compat.layers.mamba"})
