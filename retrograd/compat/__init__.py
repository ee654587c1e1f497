"""retrograd under the names of other libraries, so that calling code needs no change.

`install` registers stand-ins for the packages `mamba_ssm`, `causal_conv1d` and `fla`; `retrograd.compat.transformers`
has transformers' attention and norms, and `report` says what of a loaded model runs on retrograd.
"""

from importlib.util import find_spec

from retrograd.core.errors import missing

if find_spec("torch") is None:
    raise missing(__name__, "torch")

from .reports import report
from .stand_ins import install, uninstall

__all__ = ["install", "report", "uninstall"]
