"""What an op declares: its arguments in letters, its options, its results. `core.spec` derives the rest.

A shape is letters with spaces between them, one for each axis: `B T D`. `|` stands between alternatives, `*batch` for
any number of leading axes, `#B` for an axis that may also be of size 1, `W-1` for one that is shorter by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Letter:
    """An axis by its letter.

    Attributes:
        word: what errors and docs call it.
        least: its smallest size; a `most` alone leaves 0 out.
        most: its largest size.
        divides: the letter whose size has to be a multiple of this one's.
    """

    word: str
    least: int = 0
    most: int | None = None
    divides: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a call takes.

    Attributes:
        shape: in letters.
        dtypes: what it may have: names of dtypes, or of attributes of the call that have one or name some.
        doc: for the docstring.
        optional: whether it may be absent.
        positional: whether it may be passed by position though it is optional.
        reaches: for int32 numbers that do not fall and have no gradient, the letter of the size that they may reach.
        number: for a number that is known at run time alone, and is no part of what a kernel is compiled for, the
            dtype of the array without axes that it becomes; it has no gradient.
        kinds: jaxtyping's names of what it holds.
    """

    shape: str
    dtypes: tuple[str, ...]
    doc: str
    optional: bool = False
    positional: bool = False
    reaches: str | None = None
    number: str | None = None
    kinds: tuple[str, ...] = ("Float",)

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient."""
        return self.reaches is None and self.number is None


@dataclass(frozen=True, slots=True)
class Option:
    """What a call takes beside arrays. It is part of what a kernel is compiled for.

    Attributes:
        kind: its type in an operator schema, such as `bool`, `float`, `str?`.
        default: its value where it is not passed.
        doc: for the docstring.
        choices: all of its values, where there are few.
    """

    kind: str
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """An array that the forward pass computes.

    Attributes:
        name: it; its gradient is `d<name>`.
        shape: in letters, which may be attributes of the call too.
        dtype: an attribute of the call, or an argument whose dtype it has.
        when: the attribute of the call that says whether it is computed; always by default.
        returned: the option under which the user gets it, where that is another one.
        instead: the argument whose copy the user gets where it is not computed.
        kinds: jaxtyping's names of what it holds.
    """

    name: str
    shape: str
    dtype: str
    when: str | None = None
    returned: str | None = None
    instead: str | None = None
    kinds: tuple[str, ...] = ("Float",)


def required(shape: str, *dtypes: str, doc: str, kinds: tuple[str, ...] = ("Float",)) -> Any:
    """The field of an argument that every call has."""
    return field(metadata={"declared": Argument(shape, dtypes, doc, kinds=kinds)})


def optional(shape: str, *dtypes: str, doc: str, positional: bool = False, kinds: tuple[str, ...] = ("Float",)) -> Any:
    """The field of an argument that may be absent."""
    declared = Argument(shape, dtypes, doc, optional=True, positional=positional, kinds=kinds)
    return field(default=None, metadata={"declared": declared})


def number(dtype: str, *, doc: str) -> Any:
    """The field of a number that is known at run time alone: a Python number, or an array without axes."""
    kinds = ("Int32",) if dtype == "int32" else ("Float32",)
    declared = Argument("", (dtype,), doc, optional=True, number=dtype, kinds=kinds)
    return field(default=None, metadata={"declared": declared})


def boundaries(what: str, states: str) -> Any:
    """The field of `cu_seqlens`: where packed sequences begin and end along T, in a batch of one.

    Args:
        what: the array that holds them.
        states: the shape of a state then.
    """
    doc = (
        f"(S + 1,) int32, for B = 1: {what} holds S sequences one after another, the i-th from step cu_seqlens[i] up to"
        f" cu_seqlens[i + 1]. States are then {states}. Steps outside of every sequence give zeros. The numbers must"
        " not fall or pass T: PyTorch on a CPU and JAX on a CPU outside of `jax.jit` check them; elsewhere wrong ones"
        " give results that mean nothing."
    )
    declared = Argument("S+1", ("int32",), doc, optional=True, reaches="T", kinds=("Int32",))
    return field(default=None, metadata={"declared": declared})


def option(kind: str, default: Any, *, doc: str, choices: tuple[Any, ...] = ()) -> Any:
    """The field of an option."""
    return field(default=default, metadata={"declared": Option(kind, default, doc, choices)})


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a declared shape.

    Attributes:
        letter: its letter.
        offset: what its size has beyond that of the letter.
        may_be_one: whether it may be of size 1 instead.
        many: whether it stands for any number of axes.
    """

    letter: str
    offset: int = 0
    may_be_one: bool = False
    many: bool = False


def alternatives(shape: str) -> list[tuple[Axis, ...]]:
    """The declared shapes, as axes."""
    return [tuple(_axes(form)) for form in shape.split("|")]


def _axes(form: str) -> Iterator[Axis]:
    for token in form.split():
        match = re.fullmatch(r"([*#]?)(\w+)([+-]\d+)?", token)
        if match is None:
            raise ValueError(f"{token!r} is no axis of a declared shape")
        mark, letter, offset = match.groups()
        yield Axis(letter, int(offset or 0), may_be_one=mark == "#", many=mark == "*")


Sizes = Mapping[str, Any]  # by letter; of an axis that stands for many, a tuple


def fits(axes: tuple[Axis, ...], shape: tuple[int, ...], known: Sizes) -> dict[str, Any] | None:
    """The sizes of the letters that a shape tells beside the known ones; None where it does not fit."""
    many = [place for place, axis in enumerate(axes) if axis.many]
    if many:
        extra = len(shape) - (len(axes) - 1)
        if extra < 0:
            return None
        (place,) = many
        shape = (*shape[:place], shape[place : place + extra], *shape[place + extra :])  # type: ignore[arg-type]
    if len(shape) != len(axes):
        return None
    found: dict[str, Any] = {}
    for axis, size in zip(axes, shape, strict=True):
        if axis.may_be_one and size == 1:
            continue
        own = size if axis.many else size - axis.offset
        expected = known.get(axis.letter, found.get(axis.letter))
        if expected is None:
            found[axis.letter] = own
        elif own != expected:
            return None
    return found


def size_of(axis: Axis, sizes: Sizes) -> tuple[int, ...]:
    """The sizes that an axis has in a shape."""
    size = sizes[axis.letter]
    return tuple(size) if axis.many else (size + axis.offset,)


def form(axes: tuple[Axis, ...], letters: Mapping[str, Letter], known: Sizes) -> str:
    """A shape as errors write it, such as `(batch=2, time, channels=64)`."""
    parts = [_part(axis, letters, known) for axis in axes]
    return f"({parts[0]},)" if len(parts) == 1 and not axes[0].many else f"({', '.join(parts)})"


def _part(axis: Axis, letters: Mapping[str, Letter], known: Sizes) -> str:
    if axis.many:
        return ", ".join(map(str, known[axis.letter])) if axis.letter in known else "..."
    letter = letters[axis.letter]
    sign = f"{axis.offset:+d}" if axis.offset else ""
    if axis.letter in known:
        one = " or 1" if axis.may_be_one and known[axis.letter] != 1 else ""
        return f"{letter.word}{sign}={known[axis.letter] + axis.offset}{one}"
    if sign:
        return f"{letter.word} {sign[0]} {sign[1:]}"
    return f"{letter.word}={letter.least}..{letter.most}" if letter.most is not None else letter.word
