"""The JAX face of retrograd. `import retrograd` alone does not import jax."""

from retrograd.ops.rms_norm.jax_op import rms_norm

__all__ = ["rms_norm"]
