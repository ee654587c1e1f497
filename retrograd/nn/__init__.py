"""Modules for Mamba language models, built on retrograd's ops. The JAX counterpart is `retrograd.jax.nn`.

Parameter names, shapes and initialisation are those of state-spaces/mamba, so that its checkpoints load by key.
"""

from importlib.util import find_spec

from retrograd.core.errors import missing

if find_spec("torch") is None:
    raise missing(__name__, "torch")

from retrograd.models.config import MambaConfig

from .block import Block
from .files import load, save
from .generate import generate
from .mamba import Mamba, MambaState
from .mixer import Mixer
from .model import Backbone, LanguageModel
from .norm import RMSNorm

__all__ = [
    "Backbone",
    "Block",
    "LanguageModel",
    "Mamba",
    "MambaConfig",
    "MambaState",
    "Mixer",
    "RMSNorm",
    "generate",
    "load",
    "save",
]
