"""selective_scan in Gluon, for NVIDIA GPUs since Hopper, with an explicit assignment of states to threads."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(
    __package__,
    takes=names("x dt A B C D z dt_bias initial_state cu_seqlens dt_softplus return_final_state"),
)
