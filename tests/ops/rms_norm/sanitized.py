"""The calls of rms_norm under the sanitizers, which come to every kernel."""

from __future__ import annotations

NAMED = (
    "plain",
    "prenorm",
    "gate_sigmoid",
    "kimi",
    "qk_norm_bias",
    "hidden_768",
    "looped_backward",
    "looped",
)
