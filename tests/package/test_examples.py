"""The examples in docstrings run and print the output that they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import pytest

import retrograd

NAMES = sorted(m.name for m in walk_packages(retrograd.__path__, "retrograd.") if ".hopper" not in m.name)


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """The docstrings of a module that have examples."""
    return [test for test in doctest.DocTestFinder().find(module, module.__name__) if test.examples]


@pytest.mark.parametrize("name", NAMES)
def test_examples_print_what_they_say(name: str) -> None:
    try:
        module = import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} needs {error.name}")
    for test in examples(module):
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert result.failed == 0, test.name


def test_the_public_function_has_an_example() -> None:
    assert any(test.name.endswith(".rms_norm") for test in examples(import_module("retrograd.ops.torch_functions")))
