"""What binds ops to JAX."""
