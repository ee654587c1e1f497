"""Rewrites a module of retrograd as part of a package that can be loaded from any path, under any name.

The text stays as it is, comments included, but for the imports and what calls the package by its own name.
"""

from __future__ import annotations

import ast

from sources import NAME

# What the sources say of the package's own name -> what a copy says; NAMESPACE is that of `package/namespace.py`.
OPERATORS = {f'f"{NAME}::': 'f"{NAMESPACE}::', f"torch.ops.{NAME}": "getattr(torch.ops, NAMESPACE)"}
ANNOTATIONS = "jaxtyping"
POSTPONED = "from __future__ import annotations"
CHECKING = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    "


def rewritten(module: str, text: str, identifier: str) -> str:
    """The module's source with relative imports, and without the package's own name.

    Args:
        module: its name within the package, such as `core.op`.
        text: its source.
        identifier: the name under which the copy is loaded by default.

    Raises:
        ValueError: for an import that cannot be rewritten.
    """
    up = "." * (module.count(".") + 1)
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            line = lines[node.lineno - 1]
            if node.module == ANNOTATIONS:
                if POSTPONED not in text:
                    raise ValueError(f"{module} imports {ANNOTATIONS}, expected {POSTPONED} before")
                lines[node.lineno - 1] = _for_annotations(module, node, line)
            elif node.module.partition(".")[0] == NAME:
                relative = up + node.module.removeprefix(NAME).removeprefix(".")
                lines[node.lineno - 1] = line.replace(f"from {node.module} import", f"from {relative} import", 1)
        elif isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == NAME for alias in node.names):
            lines[node.lineno - 1] = _public_functions(module, node, up)
    return _own_name(module, "".join(lines), up, identifier)


def _for_annotations(module: str, node: ast.ImportFrom, line: str) -> str:
    """An import of what stands in annotations alone, which nothing evaluates."""
    if node.col_offset or node.lineno != node.end_lineno:
        raise ValueError(f"{module}, line {node.lineno}: expected the import of {ANNOTATIONS} on one line of its own")
    return f"{CHECKING}{line}"


def _public_functions(module: str, node: ast.Import, up: str) -> str:
    if [(alias.name, alias.asname) for alias in node.names] != [(NAME, None)] or node.col_offset:
        raise ValueError(f"{module}, line {node.lineno}: {ast.unparse(node)}, expected import {NAME}")
    return f"from {up}ops import torch_functions as {NAME}\n"


def _own_name(module: str, text: str, up: str, identifier: str) -> str:
    if module == "core.apart":  # names modules to another process
        folder = "PACKAGE = Path(__file__).resolve().parents[1]\n"
        if folder not in text:
            raise ValueError(f"{module}: expected {folder.strip()}")
        return text.replace("PACKAGE.name", "NAME").replace(folder, f'{folder}NAME = "{identifier}"\n')
    if not any(old in text for old in OPERATORS):
        return text
    for old, new in OPERATORS.items():
        text = text.replace(old, new)
    last = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)][-1]
    lines = text.splitlines(keepends=True)
    lines.insert(last.end_lineno or last.lineno, f"from {up}namespace import NAMESPACE\n")
    return "".join(lines)
