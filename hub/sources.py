"""Which modules of retrograd a package needs, found by their imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = "retrograd"
ALLOWED = {*sys.stdlib_module_names, "torch", "triton", "jaxtyping"}  # the last one in annotations alone


def path_of(folder: Path, module: str) -> Path | None:
    """The file of a module by its name within the package, such as `core.op`; None where there is none."""
    path = folder.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(module: str, text: str) -> Iterator[str]:
    """What a module imports of its package, as names of modules or of what they define.

    Raises:
        ValueError: for an import of another package than those that a kernel of the Hub may import.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = [NAME, *module.split(".")][: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == NAME:
                yield rest or "ops.torch_functions"  # `import retrograd` is for its public functions
            elif top not in ALLOWED:
                raise ValueError(f"{module} imports {top}, expected one of the package, Python, torch and triton")


def needed(folder: Path, texts: dict[str, str]) -> dict[str, str]:
    """Name -> source of all modules that some modules need, by name and source, these included.

    Args:
        folder: the package's folder.
        texts: the modules to start from; a source here counts in place of the file.
    """
    found: dict[str, str] = {}
    waiting = dict(texts)
    while waiting:
        module, text = waiting.popitem()
        found[module] = text
        for name in imported(module, text):
            for each in (name, name.rpartition(".")[0]):
                path = path_of(folder, each) if each else None
                if each in texts or each in found:
                    break
                if path is not None and path.name != "__init__.py":
                    waiting[each] = path.read_text()
                    break
    return found
