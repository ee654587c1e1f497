"""Checks of a function that has a declaration of its own, so that its errors have its names, not those of an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import bad_shape
from ..spec import CallSpec, arguments, known, required_count
from .arguments import arrays_of, check_numbers, params_of, with_open_sizes
from .sharding import check_rows


def checker(
    call: type[CallSpec], rows: bool = False
) -> Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]:
    """The function from arguments and options by name to arrays of jax and options.

    It raises ValueError or TypeError for what does not fit together; with `rows`, also for arrays that are sharded over
    explicit axes of a mesh in another way than by rows.
    """
    required = required_count(call)

    def checked(given: dict[str, Any], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = arrays_of(call.op, given, required)
        with with_open_sizes(call.op, arrays):
            spec = call.of(params_of(arrays), options)
        for letter, size in spec.sizes.items():
            if not known(size) and (expected := call.letters[letter].number):
                raise bad_shape(call.op, next(iter(arguments(call))), spec.first.shape, expected)
        check_numbers(spec, arrays)
        if rows:
            check_rows(spec, arrays)
        return arrays, options

    return checked
