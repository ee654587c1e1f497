"""Training kernels for sequence models, with bitwise reproducible gradients: retrograd's ops as a kernel of the Hub."""

from __future__ import annotations

from . import layers
from ._version import __version__
from .core.torch.warmup import warmup
from .ops.torch_functions import *  # noqa: F403
from .ops.torch_functions import __all__ as _functions

__all__ = ["__version__", "layers", "warmup", *_functions]
