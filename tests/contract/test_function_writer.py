"""The writer of public functions: what they return, and say that they return, for each choice of results.

The functions of toy declarations are written and run on an op that returns all of its results, each filled with its
place in the declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, get_overloads

import pytest
import torch

from retrograd.core.declaration import Letter, Result, option, optional, required
from retrograd.core.op import Op
from retrograd.core.spec import CallSpec, Param
from retrograd.opinfo.writer import JAX, TORCH, Face, function
from retrograd.ops.functions import IMPORTS


@dataclass(frozen=True)
class Toy(CallSpec):
    """A toy."""

    x: Param = required("T", "float32", doc="(T,).")
    residual: Param | None = optional("T", "float32", doc="(T,).")
    with_a: bool = option("bool", False, doc="also return a.")
    with_b: bool = option("bool", False, doc="also return b.")
    with_c: bool = option("bool", True, doc="also return c.")
    scale: float = option("float", 1.0, doc="a factor.")

    op: ClassVar = "toy"
    letters: ClassVar = {letter: Letter(letter) for letter in "TPQABC"}
    RETURNS: ClassVar = "the results."
    TORCH_EXAMPLE: ClassVar = ""
    JAX_EXAMPLE: ClassVar = ""


P, Q = Result("p", "P", "x"), Result("sum", "Q", "x")  # a local variable must not be named like a builtin
A, B, C = (
    Result("a", "A", "x", when="with_a"),
    Result("b", "B", "x", returned="with_b"),
    Result("c", "C", "x", "with_c"),
)
WITH_A = Result("residual", "B", "x", when="with_a")  # nor like an argument
COPY = Result("b", "T", "x", when="residual", returned="with_b", instead="x")
ALWAYS = Result("a", "T", "x", when="residual", instead="x")
ASKED = {A: "with_a", B: "with_b", C: "with_c", WITH_A: "with_a", COPY: "with_b"}
CHOICES = {
    "one": (P,),
    "two": (P, Q),
    "one optional": (P, A),
    "an optional first": (A, P),
    "an optional between": (P, B, Q),
    "two by one option": (P, A, WITH_A),
    "several": (P, A, B),
    "several, mixed": (A, P, C, Q, B),
    "returned by default": (P, C),
    "a copy instead": (P, COPY),
    "a copy instead, always": (P, ALWAYS),
}
FACES = pytest.mark.parametrize("face", [TORCH, JAX], ids=["torch", "jax"])


def toy(results: tuple[Result, ...]) -> Op:
    return Op(type("Call", (Toy,), {"results": results, "__doc__": Toy.__doc__}), "toys")


def written(results: tuple[Result, ...], face: Face, name: str) -> Any:
    """The public function; the op gives no result that is computed with a residual, if there is none."""

    def run(arrays: dict[str, Any], options: dict[str, Any]) -> tuple[Any, ...]:
        assert list(arrays) == ["x", "residual"]
        assert list(options) == ["with_a", "with_b", "with_c", "scale"]
        absent = arrays["residual"] is None
        return tuple(
            None if absent and result.when == "residual" else torch.tensor(place)
            for place, result in enumerate(results)
        )

    scope: dict[str, Any] = {"_toy": run, "__name__": name}
    source = "from __future__ import annotations\n" + IMPORTS[face] + "\n" + function(toy(results).call, face)
    exec(compile(source, name, "exec"), scope)
    return scope["toy"]


def settings(results: tuple[Result, ...]) -> Iterator[tuple[dict[str, bool], list[int]]]:
    """Options that return results, each set or left to its default -> the places of the results that they return."""
    defaults = {"with_a": False, "with_b": False, "with_c": True}
    for values in product((None, False, True), repeat=3):
        given = {name: value for name, value in zip(defaults, values, strict=True) if value is not None}
        asked = defaults | given
        yield given, [place for place, r in enumerate(results) if r not in ASKED or asked[ASKED[r]]]


@FACES
@pytest.mark.parametrize("choice", CHOICES)
def test_it_returns_the_results_that_are_asked_for_in_their_order(choice: str, face: Face) -> None:
    results = CHOICES[choice]
    call = written(results, face, f"toys.{choice}")
    x = torch.tensor(-1.0)
    for given, places in settings(results):
        found = call(x, residual=x, **given)
        assert isinstance(found, tuple) == (len(places) > 1)
        assert [int(result) for result in (found if len(places) > 1 else [found])] == places


@FACES
@pytest.mark.parametrize("choice", CHOICES)
def test_there_is_an_overload_for_each_set_of_results(choice: str, face: Face) -> None:
    results = CHOICES[choice]
    call = written(results, face, f"toys.of.{face.array}.{choice}")
    overloads = get_overloads(call)
    names = {ASKED[result] for result in results if result in ASKED}
    assert len(overloads) == (2 ** len(names) if names else 0)
    for given, places in settings(results):
        asked = {name: given.get(name, name == "with_c") for name in names}
        (fits,) = [
            one
            for one in overloads or [call]
            if all(one.__annotations__[n] == f"Literal[{v}]" for n, v in asked.items())
        ]
        kinds = [f"Float[{face.array}, ' {results[place].shape}']" for place in places]
        assert fits.__annotations__["return"] == (kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]")
        optional_here = {name for name, value in asked.items() if value == (name == "with_c")}
        if overloads:
            assert optional_here == names & set(fits.__kwdefaults__ or ())
            numbers = {1 + text.count(",") for text in call.__annotations__["return"].split(" | ")}
            assert len(places) in numbers


@FACES
def test_a_copy_stands_in_for_a_result_that_is_not_computed(face: Face) -> None:
    x = torch.tensor(-1.0)
    asked = written((P, COPY), face, "toys.copy")
    assert [int(result) for result in asked(x, with_b=True)] == [0, -1]
    assert int(asked(x)) == 0
    assert [int(result) for result in written((P, ALWAYS), face, "toys.always")(x)] == [0, -1]


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ((A, B), "toy: expected a result that is always returned"),
        ((), "toy: expected a result that is always returned"),
        ((P, Result("b", "B", "x", when="residual")), "toy: b is returned by residual, expected a bool option"),
        ((P, Result("b", "B", "x", returned="scale")), "toy: b is returned by scale, expected a bool option"),
        (
            (P, Result("b", "B", "x", when="with_a", returned="with_b")),
            "toy: b may be returned where it is not computed, expected an argument `instead`",
        ),
        (
            (P, Result("b", "B", "x", when="with_a", returned="with_b", instead="x")),
            "toy: b is computed when with_a, expected an argument, since it has `instead`",
        ),
    ],
)  # fmt: skip
def test_results_that_options_cannot_choose_are_refused(results: tuple[Result, ...], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        function(toy(results).call, TORCH)


def test_texts_that_a_declaration_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETURNS", "JAX_EXAMPLE"):
        monkeypatch.delattr(Toy, name)
    with pytest.raises(ValueError, match=r"^toy: .*Call lacks RETURNS, JAX_EXAMPLE, texts of the docstring$"):
        function(toy((P,)).call, TORCH)
