"""causal_conv1d in Triton, on every architecture."""

from retrograd.core.implementation import Implementation

IMPLEMENTATION = Implementation(
    __package__,
    takes=frozenset(["x", "weight", "bias", "initial_state", "cu_seqlens", "activation", "return_final_state"]),
)
