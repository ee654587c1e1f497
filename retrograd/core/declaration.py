"""The parts of an op's declaration: arguments with shapes in letters, options, results. `core.spec` derives the rest.

A shape is a list of letters separated by spaces, one letter per axis: `B T D`. `|` separates alternatives; `*batch` is
any number of axes; `#B` is an axis that may also be of size 1; `W-1` is an axis of size W minus 1; `3` is an axis of
size 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar

INTEGERS = ("Int32", "Int64")  # what counts and labels may be in a call; kernels get int32


@dataclass(frozen=True, slots=True)
class Letter:
    """An axis name.

    Attributes:
        word: its name in errors and docs.
        least: its smallest size, checked where `most` is set; for S, the fewest packed sequences.
        most: its largest size.
        divides: the letter whose size has to be a multiple of this letter's size.
        number: what JAX expects in place of a size that `jax.export` leaves open; None where it may be open. Functions
            with a declaration of their own refuse it by their first argument.
    """

    word: str
    least: int = 0
    most: int | None = None
    divides: str | None = None
    number: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: an array that a call takes.

    Attributes:
        shape: its shape in letters.
        dtypes: the dtypes it may have: names of dtypes, or of attributes of the call that are an array, a dtype or a
            tuple of dtypes.
        doc: its text in the docstring.
        optional: whether it may be absent.
        positional: whether it may be passed by position though it is optional.
        reaches: for non-decreasing int32 values without a gradient, the letter whose size is their upper bound.
        labels: whether its values only tell neighbours apart, and negative ones what belongs nowhere.
        number: for a run-time number, for which no kernel is specialised, the dtype of the 0-dimensional array that
            holds it.
        kinds: jaxtyping's names for its dtypes.
        differentiable: whether it has a gradient.
        of_bools: what it has in place of the bools of a mask, in errors.
    """

    shape: str
    dtypes: tuple[str, ...]
    doc: str
    optional: bool = False
    positional: bool = False
    reaches: str | None = None
    labels: bool = False
    number: str | None = None
    kinds: tuple[str, ...] = ("Float",)
    differentiable: bool = True
    of_bools: str = ""

    def __post_init__(self) -> None:
        alternatives(self.shape)


@dataclass(frozen=True, slots=True)
class Option:
    """An option: a non-array parameter of a call; kernels are compiled for its value.

    Attributes:
        kind: its type in an operator schema, such as `bool`, `float`, `str?`.
        default: its default value.
        doc: its text in the docstring.
        choices: all allowed values, where there are few; empty otherwise.
    """

    kind: str
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """An array that the forward pass computes.

    Attributes:
        name: its name; its gradient is `d<name>`.
        shape: its shape in letters; a letter may also be an integer attribute of the call.
        dtype: its dtype: the name of a dtype, of an attribute of the call that is one, or of an argument with the same
            dtype.
        when: the attribute of the call that says whether it is computed; None where it always is.
        returned: the option that returns it to the user, where that is not `when`.
        instead: the argument of which the user gets a copy where the result is not computed.
        kinds: jaxtyping's names for its dtypes.
    """

    name: str
    shape: str
    dtype: str
    when: str | None = None
    returned: str | None = None
    instead: str | None = None
    kinds: tuple[str, ...] = ("Float",)

    def __post_init__(self) -> None:
        alternatives(self.shape)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Arrays that a function takes or returns as one named tuple.

    Attributes:
        kind: the class of the named tuple. Its array `a`, in a bundle `b`, is the argument `b_a`, `b.a` in errors.
        doc: its text in the docstring.
    """

    kind: Any
    doc: str
    optional: ClassVar = False  # as of an argument
    positional: ClassVar = True


def required(shape: str, *dtypes: str, doc: str, kinds: tuple[str, ...] = ("Float",)) -> Any:
    """The field of a required argument."""
    return field(metadata={"declared": Argument(shape, dtypes, doc, kinds=kinds)})


def optional(
    shape: str,
    *dtypes: str,
    doc: str,
    positional: bool = False,
    kinds: tuple[str, ...] = ("Float",),
    of_bools: str = "",
) -> Any:
    """The field of an optional argument."""
    declared = Argument(shape, dtypes, doc, optional=True, positional=positional, kinds=kinds, of_bools=of_bools)
    return field(default=None, metadata={"declared": declared})


def number(dtype: str, *, doc: str) -> Any:
    """The field of a run-time number: a Python number or a 0-dimensional array."""
    kinds = ("Int32",) if dtype == "int32" else ("Float32",)
    declared = Argument("", (dtype,), doc, optional=True, number=dtype, kinds=kinds, differentiable=False)
    return field(default=None, metadata={"declared": declared})


def labels(shape: str, *, doc: str) -> Any:
    """The field of an optional array that tells neighbours apart, int32 in kernels; it has no gradient."""
    declared = Argument(shape, ("int32",), doc, optional=True, labels=True, kinds=INTEGERS, differentiable=False)
    return field(default=None, metadata={"declared": declared})


def boundaries(what: str, then: str, name: str = "cu_seqlens", axis: str = "T", reaches: str = "T") -> Any:
    """The field of boundaries: where packed sequences begin and end along an axis, in a batch of one.

    Args:
        what: the name of the array that holds the sequences.
        then: what else changes with packed sequences, as a sentence.
        name: the name of the boundaries.
        axis: the size of the axis, as the docs call it.
        reaches: the letter of the axis.
    """
    doc = (
        f"(S + 1,) int32 or int64, for B = 1: {what} holds S sequences one after another, the i-th from step {name}[i]"
        f" up to {name}[i + 1]. {then} Results are zero at steps outside of every sequence. The numbers must not"
        f" decrease or exceed {axis}: PyTorch on a CPU, and JAX on a CPU outside of `jax.jit`, check this; elsewhere"
        " the results for such numbers are undefined."
    )
    declared = Argument("S+1", ("int32",), doc, optional=True, reaches=reaches, kinds=INTEGERS, differentiable=False)
    return field(default=None, metadata={"declared": declared})


def same_as(call: Any, name: str, **changed: Any) -> Any:
    """The field of an argument or option that another call declares, too; `changed` says where the two differ."""
    (declared,) = (f for f in fields(call) if f.name == name)
    changed = {"doc": f"as in `{call.op}`."} | changed
    return field(default=declared.default, metadata={"declared": replace(declared.metadata["declared"], **changed)})


def option(kind: str, default: Any, *, doc: str, choices: tuple[Any, ...] = ()) -> Any:
    """The field of an option."""
    return field(default=default, metadata={"declared": Option(kind, default, doc, choices)})


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a declared shape.

    Attributes:
        letter: its letter, or its size as a number.
        offset: its size minus the letter's size.
        may_be_one: whether it may be of size 1 instead.
        many: whether it is any number of axes.
    """

    letter: str
    offset: int = 0
    may_be_one: bool = False
    many: bool = False

    @property
    def fixed(self) -> int | None:
        """Its size, where the declaration says it."""
        return int(self.letter) if self.letter.isdigit() else None


@cache
def alternatives(shape: str) -> tuple[tuple[Axis, ...], ...]:
    """The alternatives of a declared shape, each as a tuple of axes; raises ValueError for what is no shape."""
    return tuple(tuple(_axes(form)) for form in shape.split("|"))


def _axes(form: str) -> Iterator[Axis]:
    for token in form.split():
        match = re.fullmatch(r"([*#]?)(\w+)([+-]\d+)?", token)
        if match is None:
            raise ValueError(f"{token!r} is no axis of a declared shape")
        mark, letter, offset = match.groups()
        yield Axis(letter, int(offset or 0), may_be_one=mark == "#", many=mark == "*")


Sizes = Mapping[str, Any]  # by letter; a tuple for a letter of any number of axes


def form(axes: tuple[Axis, ...], letters: Mapping[str, Letter], known: Sizes) -> str:
    """A shape as printed in errors, such as `(batch=2, time, channels=64)`."""
    parts = [_part(axis, letters, known) for axis in axes]
    return f"({parts[0]},)" if len(parts) == 1 and not axes[0].many else f"({', '.join(parts)})"


def _part(axis: Axis, letters: Mapping[str, Letter], known: Sizes) -> str:
    if axis.many:
        return ", ".join(map(str, known[axis.letter])) if axis.letter in known else "..."
    if axis.fixed is not None:
        return axis.letter
    letter = letters[axis.letter]
    sign = f"{axis.offset:+d}" if axis.offset else ""
    if axis.letter in known:
        one = " or 1" if axis.may_be_one and known[axis.letter] != 1 else ""
        return f"{letter.word}{sign}={known[axis.letter] + axis.offset}{one}"
    if sign:
        return f"{letter.word} {sign[0]} {sign[1:]}"
    return f"{letter.word}={letter.least}..{letter.most}" if letter.most is not None else letter.word
