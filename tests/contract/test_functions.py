"""The generated modules of public functions match the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from write_functions import written

from retrograd.core.op import Op
from retrograd.core.spec import arguments, options
from retrograd.opinfo.writer import JAX, TORCH, Face
from retrograd.ops.functions import FILES, FOLDER, ops

FACES = pytest.mark.parametrize("face", [TORCH, JAX], ids=["torch", "jax"])
EACH_OP = pytest.mark.parametrize("op", ops(), ids=lambda op: op.name)


def function(face: Face, op: Op) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"retrograd.ops.{FILES[face].removesuffix('.py')}"), op.name)
    return found


@FACES
def test_the_functions_are_those_that_the_declarations_ask_for(face: Face) -> None:
    assert (FOLDER / FILES[face]).read_text() == written(face), "`make functions` writes them anew"


@FACES
@EACH_OP
def test_a_function_takes_what_its_op_declares(face: Face, op: Op) -> None:
    parameters = inspect.signature(function(face, op)).parameters
    assert set(parameters) == {*arguments(op.call), *options(op.call)}
    for name, option in options(op.call).items():
        assert parameters[name].default == option.default
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    for name, argument in arguments(op.call).items():
        by_position = not argument.optional or argument.positional
        assert (parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD) == by_position


@FACES
@EACH_OP
def test_every_argument_and_option_is_explained(face: Face, op: Op) -> None:
    text = inspect.getdoc(function(face, op)) or ""
    declarations: dict[str, Any] = {**arguments(op.call), **options(op.call)}
    for name, declared in declarations.items():
        assert f"    {name}: " in text
        assert declared.doc.endswith(".")
