"""Checks of a function that has a declaration of its own, so that its errors have its names, not those of an op.

Arrays are checked at once; while `torch.compile` traces, by an operator.

The code that checks a call is no code that a compiler can trace. The operator has no results, so that nothing of it is
left in what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import OPTION_TYPES, check_nondecreasing, check_option
from ..spec import CallSpec, autocast_ranks, bounded, options, required_count, shown
from .arguments import check_tensors, concrete, params_of
from .autocast import autocasts_anywhere, cast
from .formulas import is_transformed, readable
from .operator import hashable

MOST_ACCEPTED = 4096  # kinds of calls that are remembered as correct
Checked = Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


def checker(call: type[CallSpec]) -> Checked:
    """The function that checks arrays and options by name, and returns them; it raises ValueError or TypeError.

    The arrays that it checks and returns are those of autocast.

    The operator is `retrograd::check_<op>`.
    """
    names = shown(call)
    kinds = {name: declared.kind for name, declared in options(call).items()}
    defaults = {name: declared.default for name, declared in options(call).items()}
    required = required_count(call)
    numbers = bounded(call)
    ranks = autocast_ranks(call)

    accepted: set[Any] = set()

    def check_now(tensors: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        call.of(params_of(tensors), given)

    def check_once(tensors: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        try:
            kind = tuple([None if t is None else (t.shape, t.dtype, t.device, t.layout) for t in tensors.values()])
            values = tuple(given.values())
            key = (kind, values, _types(values)) if values else kind
            if key in accepted:
                return
        except (AttributeError, RuntimeError, TypeError):
            key = None  # symbols have no hash; other values that fail here are reported by the checks
        check_tensors(call.op, tensors, required)
        check_now(tensors, given)
        if key is not None and len(accepted) < MOST_ACCEPTED:
            accepted.add(key)

    def run(*given: Any) -> None:
        chosen = hashable(given[len(names) :])
        check_now(dict(zip(names.values(), given, strict=False)), dict(zip(kinds, chosen, strict=True)))

    schema = ", ".join((*(f"Tensor? {name}" for name in names), *(f"{kind} {name}" for name, kind in kinds.items())))
    operator = torch.library.custom_op(f"retrograd::check_{call.op}", run, mutates_args=(), schema=f"({schema}) -> ()")
    operator.register_fake(run)
    traced = getattr(torch.ops.retrograd, f"check_{call.op}")

    def checked(tensors: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if autocasts_anywhere():
            tensors = cast(tensors, ranks)
        if not torch.compiler.is_compiling():
            check_once(tensors, given)
            if any(has_values(tensors.get(name)) for name in numbers):
                check_values(call.of(params_of(tensors), given), tensors)
            return tensors, given
        check_tensors(call.op, tensors, required)
        for name, value in given.items():
            if kinds[name] in OPTION_TYPES:
                check_option(call.op, name, concrete(value), kinds[name])
        if not is_transformed():  # what a transform wraps goes through no operator without results
            found = [tensors.get(name) for name in names.values()]
            arrays = [None if tensor is None else tensor.detach() for tensor in found]
            traced(*arrays, *[given.get(name, default) for name, default in defaults.items()])
        return tensors, given

    return checked


def check_values(spec: CallSpec, tensors: Mapping[str, Any]) -> None:
    """Raise for numbers that decrease or exceed their limit, in ordinary tensors on a CPU."""
    for name, limit in spec.limited().items():
        numbers = tensors[name]
        if has_values(numbers):
            check_nondecreasing(spec.op, name, numbers.tolist(), limit)


def has_values(numbers: Any) -> bool:
    """Whether these are numbers that can be read without waiting for a GPU."""
    return type(numbers) is torch.Tensor and readable(numbers)


def _types(value: Any) -> Any:
    """The type of an option, or of what a tuple has: True, 1 and 1.0 are equal, but not all are correct options."""
    return tuple([_types(item) for item in value]) if isinstance(value, tuple) else type(value)
