"""A step of the plain recurrence, which overwrites its state."""
