"""retrograd under the names that other libraries look for: what needs no change to the code that calls it.

`install` stands in for the packages `mamba_ssm` and `causal_conv1d`; `retrograd.compat.transformers.patch` swaps the
norms of a loaded model.
"""

from .stand_ins import install, uninstall

__all__ = ["install", "uninstall"]
