"""Names of a module that are imported when they are first used: `retrograd.nn` takes seconds to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, for names and the modules that have them."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return get
