"""Options of generation, and their checks, for both frameworks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from retrograd.core.errors import bad_type, bad_value

from .config import MambaConfig
from .layers import is_number, is_size


class SamplingOptions(NamedTuple):
    """How a token is drawn from logits.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: draw from so many of the likeliest tokens; None for all.
        top_p: draw from the likeliest tokens whose probabilities add up to this share, one of them at least.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def check(self, where: str) -> None:
        """Raise for a value out of its range."""
        check_number(where, "temperature", self.temperature)
        if self.top_k is not None:
            check_size(where, "top_k", self.top_k)
        check_number(where, "top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise bad_value(where, "top_p", self.top_p, "a number above 0, 1 at most")


def stop_tokens(where: str, stop: Any, config: MambaConfig) -> tuple[int, ...]:
    """The tokens that end a row, of one or of several."""
    found = [stop] if isinstance(stop, int) else None
    if isinstance(stop, Collection) and not hasattr(stop, "ndim"):  # an array has no integers as its items
        found = list(stop)
    if found is None or not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise bad_type(where, "stop", stop, "an integer, or a collection of integers")
    for token in found:
        if not 0 <= token < config.vocab_size:
            raise bad_value(where, "stop", token, f"numbers from 0 to {config.vocab_size - 1}")
    return tuple(found)


def check_size(where: str, argument: str, value: Any, least: int = 1) -> None:
    """Raise unless a value is an integer of at least `least`."""
    if not is_size(value, least):
        raise bad_value(where, argument, value, f"an integer of at least {least}")


def check_number(where: str, argument: str, value: Any) -> None:
    """Raise unless a value is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_type(where, argument, value, "a float")
    if not is_number(value):
        raise bad_value(where, argument, value, "a finite number of at least 0")
