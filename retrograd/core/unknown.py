"""The error for an argument that a function does not have, with the name that it has here."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from .spec import CallSpec, options, parameters


class Unknown:
    """The type of keywords that a function does not have: there is no value of it, so type checkers refuse them."""


def no_argument(call: type[CallSpec], unknown: Iterable[str]) -> TypeError:
    """A call has arguments that its function does not take."""
    name = next(iter(unknown))
    names = (*parameters(call), *options(call))
    close = get_close_matches(name, names, 1)
    expected = call.elsewhere.get(name) or (close[0] if close else f"one of {', '.join(names)}")
    return TypeError(f"{call.op}: {name} is no argument, expected {expected}")
