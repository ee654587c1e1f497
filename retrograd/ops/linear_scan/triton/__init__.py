"""linear_scan in Triton, on every architecture."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(__package__, takes=names("a b initial_state cu_seqlens reverse return_final_state"))
