"""Modules that are replaced in place, by giving them another class."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import nn

from retrograd.core.errors import bad_value


class Replacement(nn.Module):
    """A module of ours with the parameters, the hooks and the class of another one: `replacing` makes its class."""

    ours: ClassVar[type[Replacement]]
    original: ClassVar[type[nn.Module]]

    def __reduce__(self) -> Any:
        if not self.is_as_made:
            return super().__reduce__()  # a parametrization refuses to be stored without its class
        return _empty, (self.ours, self.original), self.__dict__  # a class made at run time is not found by its name

    @property
    def is_as_made(self) -> bool:
        """Whether the class is the one that `replacing` made, and none made of it since."""
        return type(self) is replacing(self.ours, self.original)

    def check_unchanged(self, function: str, name: str) -> None:
        """Raise if something else has been built on the class or on the forward since they were replaced."""
        if not self.is_as_made:
            expected = f"{self.original.__name__!r}: take away first what was added since, such as a parametrization"
            raise bad_value(function, f"class of {name}", type(self).__name__, expected)
        forward = vars(self).get("forward")
        if forward is not None and getattr(forward, "__func__", None) is not type(self).forward:
            expected = "that of its class: take away first what replaced it, such as accelerate's hooks"
            raise ValueError(f"{function}: forward of {name} is replaced, expected {expected}")

    def restore(self) -> None:
        """Make it a module of the original class again."""
        vars(self).pop("forward", None)  # accelerate leaves that of the class when it takes its hooks away
        self.__class__ = self.original  # type: ignore[assignment]


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
