from retrograd.core.implementation import Implementation

IMPLEMENTATION = Implementation(__package__, takes=frozenset({"x", "scale", "seed"}))
