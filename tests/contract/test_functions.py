"""The generated modules of public functions match the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from write_functions import written

from retrograd.core.spec import CallSpec, options, parameters
from retrograd.opinfo.writer import JAX, TORCH, Face
from retrograd.ops.functions import FILES, FOLDER, calls, ops

FACES = pytest.mark.parametrize("face", [TORCH, JAX], ids=["torch", "jax"])
CALLS = [call for op in ops() for call in calls(op)]
EACH_CALL = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.op)


def function(face: Face, call: type[CallSpec]) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"retrograd.ops.{FILES[face].removesuffix('.py')}"), call.op)
    return found


@FACES
def test_the_functions_are_those_that_the_declarations_ask_for(face: Face) -> None:
    assert (FOLDER / FILES[face]).read_text() == written(face), "`make functions` writes them anew"


@FACES
@EACH_CALL
def test_a_function_takes_what_its_declaration_says(face: Face, call: type[CallSpec]) -> None:
    taken = inspect.signature(function(face, call)).parameters
    divided = {"context"} if call.divides_time else set()
    assert set(taken) == {*parameters(call), *options(call), "unknown", *divided}
    for name, option in options(call).items():
        assert taken[name].default == option.default
        assert taken[name].kind is inspect.Parameter.KEYWORD_ONLY
    for name, declared in parameters(call).items():
        by_position = not declared.optional or declared.positional
        assert (taken[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD) == by_position


@FACES
@EACH_CALL
def test_every_argument_and_option_is_explained(face: Face, call: type[CallSpec]) -> None:
    text = inspect.getdoc(function(face, call)) or ""
    declarations: dict[str, Any] = {**parameters(call), **options(call)}
    for name, declared in declarations.items():
        assert f"    {name}: " in text
        assert declared.doc.endswith(".")
