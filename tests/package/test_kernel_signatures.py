"""Kernels are read by name: few parameters, no tuple read by a number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "retrograd"
MOST_OF_A_KERNEL, MOST = 20, 14
# Tuples of which each element is alike: taps of a convolution, and the gradients before it.
ALIKE = {"window", "dpre"}


@cache
def jit_functions() -> list[tuple[str, ast.FunctionDef]]:
    """Every function that Triton compiles, named by its file."""
    return list(_jit_functions())


def _jit_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(d).startswith(("triton.jit", "gluon.jit")) for d in node.decorator_list
            ):
                yield f"{path.relative_to(PACKAGE).as_posix()}: {node.name}", node


def is_kernel(function: ast.FunctionDef) -> bool:
    """Whether it is launched from the host: it then says what is not specialised."""
    return any("do_not_specialize" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_kernels_have_at_most_20_parameters_and_what_they_call_14() -> None:
    most = {name: MOST_OF_A_KERNEL if is_kernel(f) else MOST for name, f in jit_functions()}
    found = {name: len(f.args.args) for name, f in jit_functions()}
    assert not {name: number for name, number in found.items() if number > most[name]}


def test_no_tuple_is_read_by_a_number() -> None:
    read = [
        f"{name}: {ast.unparse(node)}"
        for name, function in jit_functions()
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
        and node.value.id not in ALIKE
    ]
    assert not read
