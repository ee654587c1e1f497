"""A step of generation, which overwrites its state."""
