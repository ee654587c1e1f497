"""How soon a state is forgotten, for time that is divided over several places.

With l the log decays of its steps, a state has exp(l_s + ... + l_t) of itself left after the steps s to t. An op that
takes a `context` and has a state has a function `log_decays(xp, arrays, options)` in its portable path.
"""

from __future__ import annotations

STEP = 256  # parts that begin at its multiples, in their sequence, keep the bits of the whole in every op
