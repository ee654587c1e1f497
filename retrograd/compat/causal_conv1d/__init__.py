"""Stand-in for the package causal_conv1d."""

from .causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update

__version__ = "1.6.1"  # the release with these signatures

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
