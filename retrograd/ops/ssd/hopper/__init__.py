"""ssd for Hopper, in Gluon: 16 bits, heads of whole slices, no gate."""

from retrograd.core.implementation import Implementation

IMPLEMENTATION = Implementation(
    __package__,
    takes=frozenset("x dt A B C D dt_bias initial_state cu_seqlens dt_softplus dt_limit return_final_state".split()),
)
