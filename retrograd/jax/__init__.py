"""The JAX interface of retrograd. `import retrograd` alone does not import jax, and this module needs no torch."""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('retrograd.jax needs jax: pip install "retrograd[jax]"', name=error.name) from error

from retrograd.ops.jax_functions import *  # noqa: F403
from retrograd.ops.jax_functions import __all__ as _functions

__all__ = list(_functions)
