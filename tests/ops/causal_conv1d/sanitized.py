"""The calls of causal_conv1d under the sanitizers, which come to every kernel."""

from __future__ import annotations

NAMED = (
    "silu",
    "one_channel",
    "states",
    "packed_states",
    "short",
)
