"""ssd in Triton, on every architecture."""

from retrograd.core.implementation import Implementation

IMPLEMENTATION = Implementation(
    __package__,
    takes=frozenset("x dt A B C D z dt_bias initial_state cu_seqlens dt_softplus dt_limit return_final_state".split()),
)
