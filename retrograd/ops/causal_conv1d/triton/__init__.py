"""causal_conv1d in Triton, on every architecture."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(
    __package__,
    takes=names("x weight bias initial_state cu_seqlens activation return_final_state"),
)
