"""selective_scan in Gluon, for NVIDIA GPUs since Hopper, where who holds which state decides the speed."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(
    __package__,
    takes=names("x dt A B C D z dt_bias initial_state cu_seqlens dt_softplus return_final_state"),
)
