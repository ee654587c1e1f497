"""selective_scan in Gluon, for NVIDIA GPUs since Hopper, with an explicit assignment of states to threads."""
