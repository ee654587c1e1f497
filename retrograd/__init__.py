"""retrograd: training kernels for sequence models, forward and backward. This is the PyTorch face.

The JAX face is `retrograd.jax`. Every gradient is bitwise reproducible, and where there is no GPU the same calls run
on a portable path.
"""

from importlib.util import find_spec

from retrograd._version import __version__
from retrograd.core.errors import missing

if find_spec("torch") is not None:
    from retrograd.core.torch.warmup import warmup
    from retrograd.ops.torch_functions import *  # noqa: F403
    from retrograd.ops.torch_functions import __all__ as _functions

    __all__ = ["__version__", "warmup", *_functions]
else:

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise missing("retrograd", "torch")
