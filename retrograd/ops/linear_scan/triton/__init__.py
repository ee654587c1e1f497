"""linear_scan in Triton, on every architecture."""

from retrograd.core.implementation import Implementation

IMPLEMENTATION = Implementation(
    __package__, takes=frozenset(["a", "b", "initial_state", "cu_seqlens", "reverse", "return_final_state"])
)
