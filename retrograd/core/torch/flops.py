"""The FLOPs of registered operators, for PyTorch's counter.

They are told when the counter's module is imported, not before: that module imports Triton, which a user without a GPU
may never need.
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


def tell_flops(operator: Any, formula: Formula) -> None:
    """Have the counter count the calls of an operator by a formula."""
    _formulas.append((operator, formula))
    if COUNTER in sys.modules:
        _register(sys.modules[COUNTER], [(operator, formula)])
    elif not any(isinstance(finder, _Waits) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waits())


def _register(counter: ModuleType, formulas: Sequence[tuple[Any, Formula]]) -> None:
    for operator, formula in formulas:

        def count(*arguments: Any, out_val: Any = None, formula: Formula = formula) -> int:
            return formula(*arguments)

        counter.register_flop_formula(operator, get_raw=True)(count)


class _Waits(MetaPathFinder):
    """Registers the formulas once the counter's module is there, and is gone then."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, with an end added to its loading."""
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
