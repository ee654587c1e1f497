"""The JAX interface of retrograd. `import retrograd` alone does not import jax, and this module needs no torch."""

from importlib.util import find_spec

from retrograd.core.errors import missing

if find_spec("jax") is None:
    raise missing(__name__, "jax")

from retrograd.ops.jax_functions import *  # noqa: F403
from retrograd.ops.jax_functions import __all__ as _functions

__all__ = list(_functions)
