"""What the kernels for Hopper pass to their warp groups where each channel has a decay of its own."""

from __future__ import annotations

from typing import Any, NamedTuple


class ChannelArrays(NamedTuple):
    """Descriptors of what a walk reads; q_grow and scores only where it computes results."""

    q_grow: Any
    k_grow: Any
    k_rest: Any
    v: Any
    planes: Any
    inverse: Any
    scores: Any


class EarlyRing(NamedTuple):
    """A ring of what a block needs first, and is done with first; without results q_grow is None."""

    q_grow: Any
    k_grow: Any
    v: Any
    ends: Any
    rates: Any
    inverse: Any
    full: Any
    empty: Any


class LateRing(NamedTuple):
    """A ring of what a block needs until its end, of one stage less; without results scores is None."""

    k_rest: Any
    scores: Any
    full: Any
    empty: Any
