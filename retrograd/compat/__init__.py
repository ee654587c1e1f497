"""retrograd under the names of other libraries, so that calling code needs no change.

`install` registers stand-ins for the packages `mamba_ssm` and `causal_conv1d`;
`retrograd.compat.transformers.patch` replaces the norms of a loaded model.
"""

from importlib.util import find_spec

from retrograd.core.errors import missing

if find_spec("torch") is None:
    raise missing(__name__, "torch")

from .stand_ins import install, uninstall

__all__ = ["install", "uninstall"]
