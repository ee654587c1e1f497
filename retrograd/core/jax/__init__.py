"""The binding of ops to JAX."""
