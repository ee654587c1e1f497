"""A step of `ssd` with the bits of the Hopper kernels: one row of the block that it is in."""
