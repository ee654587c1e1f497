"""Modules that are replaced in place, by giving them another class."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import nn


class Replacement(nn.Module):
    """A module of ours with the parameters, the hooks and the class of another one: `replacing` makes its class."""

    ours: ClassVar[type[Replacement]]
    original: ClassVar[type[nn.Module]]

    def __reduce__(self) -> Any:
        return _empty, (self.ours, self.original), self.__dict__  # a class made at run time is not found by its name


Kind = TypeVar("Kind", bound=Replacement)
_made: dict[tuple[type, type], Any] = {}


def replacing(ours: type[Kind], original: type[nn.Module]) -> type[Kind]:
    """A subclass of both, with the name of the original, for which models ask."""
    if (ours, original) not in _made:
        attributes = {"ours": ours, "original": original, "__module__": ours.__module__}
        _made[ours, original] = type(original.__name__, (ours, original), attributes)
    found: type[Kind] = _made[ours, original]
    return found


def _empty(ours: type[Kind], original: type[nn.Module]) -> Kind:
    kind = replacing(ours, original)
    return kind.__new__(kind)
