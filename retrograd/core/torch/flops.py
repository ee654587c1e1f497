"""Registers FLOP formulas of the operators with PyTorch's FLOP counter.

They are registered only when the counter's module is imported: that module imports Triton, which a user without a GPU
may not need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

COUNTER = "torch.utils.flop_counter"
Formula = Callable[..., int]  # from an operator's arguments
_formulas: list[tuple[Any, Formula]] = []


def register_flops(operator: Any, formula: Formula) -> None:
    """Register an operator's formula with the counter, now or when the counter's module is imported."""
    _formulas.append((operator, formula))
    if COUNTER in sys.modules:
        _register(sys.modules[COUNTER], [(operator, formula)])
    elif not any(isinstance(finder, _RegistersOnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegistersOnImport())


def _register(counter: ModuleType, formulas: Sequence[tuple[Any, Formula]]) -> None:
    for operator, formula in formulas:

        def count(*arguments: Any, out_val: Any = None, formula: Formula = formula) -> int:
            return formula(*arguments)

        counter.register_flop_formula(operator, get_raw=True)(count)


class _RegistersOnImport(MetaPathFinder):
    """An import hook that registers the formulas when the counter's module is loaded; it then removes itself."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the counter's module, whose loader then also registers the formulas; None for other modules."""
        if fullname != COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            _register(module, _formulas)

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
