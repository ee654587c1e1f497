"""Models of transformers on retrograd: their attention by `register`, the norms of a loaded model by `patch`."""

from .attention import register
from .norms import RMSNorm, patch, unpatch

__all__ = ["RMSNorm", "patch", "register", "unpatch"]
