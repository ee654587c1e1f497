"""Docstrings and signatures as the site shows them."""

from __future__ import annotations

from typing import Any

import griffe

UNKNOWN = "unknown"  # takes keywords of other libraries, for an error that names ours


class Shown(griffe.Extension):
    """Sections of examples, blocks of formulas, and parameters that no user passes."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring and signature."""
        if obj.docstring:
            text = obj.docstring.value
            # griffe knows the plural alone; markdown needs no second colon before a block
            obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n").replace("::\n", ":\n")
        if isinstance(obj, griffe.Function) and UNKNOWN in obj.parameters:
            del obj.parameters[UNKNOWN]
