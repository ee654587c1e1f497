"""Stand-in for the package fla (flash-linear-attention): its gated delta rules."""

from . import ops

__version__ = "0.6.0"  # the release with these signatures

__all__ = ["ops"]
