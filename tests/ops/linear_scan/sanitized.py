"""The calls of linear_scan under the sanitizers, which come to every kernel."""

from __future__ import annotations

NAMED = (
    "plain",
    "states",
    "shared_both",
    "packed",
    "packed_shared",
    "complex",
    "long",
)
