"""`mamba_ssm.modules.mamba2`: the layer of Mamba-2."""

from retrograd.compat.lazy import lazy

__getattr__ = lazy(__name__, {"Mamba2": "retrograd.compat.layers.mamba2"})
