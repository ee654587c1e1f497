"""Models of transformers on retrograd: their attention by `register`, their norms and packed texts by `patch`."""

from .attention import register
from .norms import RMSNorm, register_norms
from .patching import patch, unpatch

__all__ = ["RMSNorm", "patch", "register", "register_norms", "unpatch"]
