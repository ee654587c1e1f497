"""Modules for language models of Mamba, Mamba-2, gated delta rule and attention layers, built on retrograd's ops.

Parameter names, shapes and initialisation are those of state-spaces/mamba, so that its checkpoints load by key. The JAX
counterpart is `retrograd.jax.nn`.
"""

from importlib.util import find_spec

from retrograd.core.errors import missing

if find_spec("torch") is None:
    raise missing(__name__, "torch")

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, GatedDeltaNetConfig, Mamba1Config, Mamba2Config

from .attention import Attention, AttentionState
from .block import Block
from .files import load, save
from .gated_delta_net import GatedDeltaNet, GatedDeltaNetState
from .generate import generate, score
from .linear import Linear
from .mamba import Mamba, MambaState
from .mamba2 import Mamba2, Mamba2State
from .mixer import Mixer
from .mlp import GatedMLP
from .model import Backbone, LanguageModel
from .norm import RMSNorm
from .reading import read_back

__all__ = [
    "Attention",
    "AttentionConfig",
    "AttentionState",
    "Backbone",
    "Block",
    "GatedDeltaNet",
    "GatedDeltaNetConfig",
    "GatedDeltaNetState",
    "GatedMLP",
    "LanguageModel",
    "Linear",
    "Mamba",
    "Mamba1Config",
    "Mamba2",
    "Mamba2Config",
    "Mamba2State",
    "MambaConfig",
    "MambaState",
    "Mixer",
    "RMSNorm",
    "generate",
    "load",
    "read_back",
    "save",
    "score",
]
