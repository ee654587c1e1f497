"""The calls of attention under the sanitizers, which come to every kernel."""

from __future__ import annotations

NAMED = (
    "plain",
    "window",
    "bias",
    "sinks",
    "packed_gaps",
    "wide_values",
    "everything",
    "fused_packed",
    "segments_tiles",
    "size_64_packed",
    "size_128_window",
    "size_192_128",
)
