"""The errors a user can cause; each text names the op, the argument, what was passed and what was expected."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any

# Type of an option in an operator schema -> the Python types it may have, and their name in errors.
OPTION_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "a bool"),
    "float": ((float, int), "a float"),
    "float[]": ((tuple,), "a tuple of floats"),
    "SymInt?": ((int, NoneType), "an int or None"),
    "float?": ((float, int, NoneType), "a float or None"),
    "int": ((int,), "an int"),
    "int[]?": ((tuple, NoneType), "a tuple of ints or None"),
    "str": ((str,), "a str"),
    "str?": ((str, NoneType), "a str or None"),
}
# Most bits of an int that can be converted to the schema's type.
MOST_BITS = {"float": 1023, "float?": 1023, "int": 63, "SymInt?": 63}


def missing(module: str, framework: str) -> ModuleNotFoundError:
    """A module of retrograd is imported where its framework, `torch` or `jax`, is not installed."""
    text = f'{module} needs {framework}: pip install "retrograd[{framework}]"'
    return ModuleNotFoundError(text, name=framework)


def bad_value(op: str, argument: str, got: Any, expected: str) -> ValueError:
    """An argument of the right type whose value cannot be used."""
    long = isinstance(got, int) and got.bit_length() > MOST_BITS["SymInt?"]  # Python refuses to print very long ints
    shown = f"an int of {got.bit_length()} bits" if long else repr(got)
    return ValueError(f"{op}: {argument} is {shown}, expected {expected}")


def bad_shape(op: str, argument: str, got: Iterable[int], expected: str) -> ValueError:
    """An array of the wrong shape."""
    return ValueError(f"{op}: {argument} has shape {tuple(got)}, expected {expected}")


def bad_dtype(op: str, argument: str, got: str, expected: Iterable[str]) -> TypeError:
    """An array of a dtype the op does not support."""
    return TypeError(f"{op}: {argument} has dtype {got}, expected {' or '.join(expected)}")


def bad_layout(op: str, argument: str, got: str, expected: str) -> TypeError:
    """An array that is not stored as one strided block of memory."""
    return TypeError(f"{op}: {argument} has layout {got}, expected {expected}")


def bad_type(op: str, argument: str, got: Any, expected: str) -> TypeError:
    """Something that is not an array, or an option of the wrong Python type."""
    kind = type(got)
    # numpy's bool has the same name as Python's.
    name = kind.__name__ if getattr(builtins, kind.__name__, kind) is kind else f"{kind.__module__}.{kind.__name__}"
    return TypeError(f"{op}: {argument} is {name}, expected {expected}")


def check_option(op: str, option: str, value: Any, kind: str) -> None:
    """Raise for an option that is not of its type in OPTION_TYPES, or too large an int; a bool is not a number."""
    types, expected = OPTION_TYPES[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise bad_type(op, option, value, expected)
    if isinstance(value, tuple):
        for place, item in enumerate(value):
            check_option(op, f"{option}[{place}]", item, kind.removesuffix("?").removesuffix("[]"))
    if kind in MOST_BITS and isinstance(value, int) and not -(2 ** MOST_BITS[kind]) < value < 2 ** MOST_BITS[kind]:
        raise bad_value(op, option, value, f"at most {MOST_BITS[kind]} bits")


def check_number(op: str, argument: str, value: Any, dtype: str) -> None:
    """Raise for a value that is not a number of the dtype, int32 or float32."""
    kinds, expected = ((int,), "an int") if dtype == "int32" else ((float, int), "a float")
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise bad_type(op, argument, value, f"{expected} or an array without axes")
    most = 2**31 if dtype == "int32" else 2**127
    if value != value or not -most <= value < most:
        raise bad_value(op, argument, value, f"a finite number that {dtype} has")


def check_nondecreasing(op: str, argument: str, numbers: Sequence[int], limit: int) -> None:
    """Raise for numbers that decrease, or that are outside of 0 to `limit`."""
    for place, (before, number) in enumerate(pairwise((0, *numbers))):
        if not before <= number <= limit:
            raise bad_value(op, f"{argument}[{place}]", number, f"numbers that do not fall, from 0 to {limit}")


def fields_of(op: str, argument: str, value: Any, kind: Any) -> dict[str, Any]:
    """The arrays of a named tuple by their names in errors; raises TypeError for anything of another kind."""
    if not isinstance(value, kind):
        raise bad_type(op, argument, value, f"an instance of {kind.__name__}")
    return {f"{argument}.{name}": getattr(value, name) for name in kind._fields}


def as_tuple(value: Any) -> Any:
    """A list (as configurations store tuples) as a tuple; anything else unchanged."""
    return tuple(value) if isinstance(value, list) else value


def renamed(error: Exception, names: Mapping[str, str]) -> None:
    """Let an error of the functions above speak of another op and its argument, by the names that it has now."""
    text = str(error)
    head = re.match(r"(\w+): (device of )?(\w+)", text)
    if head is not None and head[1] in names:
        op, device, argument = head.groups("")
        error.args = (f"{names[op]}: {device}{names.get(argument, argument)}{text[head.end() :]}",)
