"""Which axes of a call's arrays are divided together, where parts of it are computed in several places."""

from __future__ import annotations

from .declaration import alternatives
from .spec import BATCH, SEQUENCES, CallSpec, arguments


def letters_of(spec: CallSpec, name: str) -> tuple[str | None, ...]:
    """The letter of each axis of an argument or result; None where it is broadcast, and for a group that all share.

    Axes of a letter of many are numbered. A letter that divides another one goes with it, as groups do with heads, and
    sequences that are not packed are rows.
    """
    declared = {result.name: result.shape for result in (*spec.results, *spec.kept)}
    param = spec[name]
    assert param is not None
    shape = arguments(type(spec))[name].shape if name in arguments(type(spec)) else declared[name]
    for axes in alternatives(shape):
        many = len(param.shape) - len(axes) + 1
        expanded = [
            (f"{axis.letter}[{place}]" if axis.many else axis.letter, axis)
            for axis in axes
            for place in (range(many) if axis.many else (0,))
        ]
        if len(expanded) == len(param.shape):
            return tuple(
                _base(spec, letter, size) if axis.may_be_one is False or size != 1 else None
                for (letter, axis), size in zip(expanded, param.shape, strict=True)
            )
    raise AssertionError(f"{name} has no declared shape")


def _base(spec: CallSpec, letter: str, size: int) -> str | None:
    if letter == SEQUENCES and not spec.packed:
        return BATCH
    if (same := spec.same_axes().get(letter)) is not None:
        return same
    declared = spec.letters.get(letter)
    if declared is not None and declared.divides is not None:
        return declared.divides if size > 1 else None
    return letter
