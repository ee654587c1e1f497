"""The texts of the errors a user can cause: the op, the argument, what came and what was expected, in that order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any


def bad_value(op: str, argument: str, got: Any, expected: str) -> ValueError:
    """An argument of the right type whose value cannot be used."""
    return ValueError(f"{op}: {argument} is {got!r}, expected {expected}")


def bad_shape(op: str, argument: str, got: Iterable[int], expected: str) -> ValueError:
    """An array of the wrong shape."""
    return ValueError(f"{op}: {argument} has shape {tuple(got)}, expected {expected}")


def bad_dtype(op: str, argument: str, got: str, expected: Iterable[str]) -> TypeError:
    """An array of a dtype the op does not take."""
    return TypeError(f"{op}: {argument} has dtype {got}, expected {' or '.join(expected)}")


def bad_type(op: str, argument: str, got: Any, expected: str) -> TypeError:
    """Something that is not an array, or an option of the wrong Python type."""
    return TypeError(f"{op}: {argument} is {type(got).__name__}, expected {expected}")


def check_rising(op: str, argument: str, numbers: Sequence[int], limit: int) -> None:
    """Raise for numbers that fall, or that are not from 0 to a limit."""
    for place, (before, number) in enumerate(pairwise((0, *numbers))):
        if not before <= number <= limit:
            raise bad_value(op, f"{argument}[{place}]", number, f"numbers that do not fall, from 0 to {limit}")


def renamed(error: Exception, names: Mapping[str, str]) -> None:
    """Let an error of the functions above speak of another op and its argument, by the names that it has now."""
    text = str(error)
    head = re.match(r"(\w+): (device of )?(\w+)", text)
    if head is not None and head[1] in names:
        op, device, argument = head.groups("")
        error.args = (f"{names[op]}: {device}{names.get(argument, argument)}{text[head.end() :]}",)
