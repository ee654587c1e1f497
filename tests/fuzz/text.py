"""A call as Python source that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


class Pasted:
    """A dataclass whose repr is Python, without the fields that have their default value."""

    def __repr__(self) -> str:
        return text(self)


def text(value: Any) -> str:
    """A value as Python; dataclasses are printed without the fields that have their default value."""
    if is_dataclass(value):
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        items = [f"{f.name}={text(values[f.name])}" for f in fields(value) if values[f.name] != default(f)]
        return f"{type(value).__name__}({', '.join(items)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{text(name)}: {text(item)}" for name, item in value.items()) + "}"
    return repr(value)


def default(field: Field[Any]) -> Any:
    """The default value of a field."""
    return field.default if field.default_factory is MISSING else field.default_factory()
