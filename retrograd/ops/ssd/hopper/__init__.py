"""ssd for Hopper, in Gluon: 16 bits, heads of whole slices, no gate."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(
    __package__,
    takes=names("x dt A B C D dt_bias initial_state cu_seqlens dt_softplus dt_limit return_final_state"),
)
