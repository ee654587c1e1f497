"""Modules of the package import down only, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BELOW = ("retrograd.core", "retrograd.opinfo", "retrograd.ops")  # each imports nothing of what comes after it


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in (ROOT / "retrograd").rglob("*.py")}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports anywhere in a module, but for those that only the type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from statements(child)


@cache
def imported(name: str) -> set[str]:
    """The modules of the package that a module imports."""
    path, found = MODULES[name], set[str]()
    folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for statement in statements(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
            continue
        own = folder[: len(folder) - statement.level + 1] if statement.level else []
        base = ".".join([*own, *([statement.module] if statement.module else [])])
        found |= {whole if (whole := f"{base}.{a.name}") in MODULES else base for a in statement.names}
    return (found & MODULES.keys()) - {name}


def test_no_module_imports_itself_by_way_of_others() -> None:
    list(TopologicalSorter({name: imported(name) for name in MODULES}).static_order())  # CycleError names a circle


def test_what_stands_below_imports_nothing_of_what_stands_above() -> None:
    for place, folder in enumerate(BELOW):
        above = tuple(
            f"{name}." for name in (*BELOW[place + 1 :], "retrograd.testing", "retrograd.bench", "retrograd.cli")
        )
        for name in MODULES:
            if name.startswith(f"{folder}."):
                assert not [other for other in imported(name) if f"{other}.".startswith(above)], name


def test_what_users_call_does_not_need_what_only_tests_know() -> None:
    for name in MODULES:
        if name.startswith(("retrograd.ops.", "retrograd.nn", "retrograd.jax", "retrograd.compat", "retrograd.train")):
            needs = {other for other in imported(name) if other.startswith("retrograd.opinfo")}
            assert not needs or name.rpartition(".")[2] in ("cases", "info", "infos", "functions"), name


def test_no_implementation_of_an_op_imports_another() -> None:
    """What two of them share stands beside both: an op's folder has one folder for each."""
    implementations = {
        tuple(name.split(".")[:4]) for name in MODULES if len(name.split(".")) > 4 and name.startswith("retrograd.ops.")
    }
    assert len(implementations) > 6
    for name in MODULES:
        if (own := tuple(name.split(".")[:4])) in implementations:
            others = {tuple(other.split(".")[:4]) for other in imported(name)} & implementations
            assert others <= {own}, name
