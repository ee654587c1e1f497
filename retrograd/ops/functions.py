"""The source of the public functions, from the ops' declarations; `make functions` writes the modules."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from retrograd.core.op import Op, Stack
from retrograd.core.spec import CallSpec
from retrograd.opinfo.writer import JAX, TORCH, Face, caller, function

from .names import NAMES

FOLDER = Path(__file__).parent
FILES = {TORCH: "torch_functions.py", JAX: "jax_functions.py"}
IMPORTS = {
    TORCH: """\
import math
from typing import Literal, overload

import torch
from jaxtyping import Complex, Float, Int32, Int64
from torch import Tensor

from retrograd.core.errors import as_tuple, fields_of
from retrograd.core.torch.arguments import as_array, in_int32, labels_in_int32, torch_dtype
from retrograd.core.torch.checks import checker
from retrograd.core.torch.context import Context
from retrograd.core.torch.op import bind, bind_kernels
from retrograd.core.torch.stack import bind_stack
from retrograd.core.torch.xp import torch_namespace
from retrograd.core.unknown import Unknown, no_argument
""",
    JAX: """\
import math
from typing import Any, Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int32, Int64

from retrograd.core.errors import as_tuple, fields_of
from retrograd.core.jax.arguments import as_array, in_int32, jax_dtype, labels_in_int32
from retrograd.core.jax.checks import checker
from retrograd.core.jax.context import Context
from retrograd.core.jax.op import bind
from retrograd.core.jax.stack import bind_stack
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.unknown import Unknown, no_argument
""",
}


def ops() -> list[Op]:
    """Every op."""
    return [import_module(f"retrograd.ops.{name}.op").OP for name in NAMES]


def calls(op: Op) -> list[type[CallSpec]]:
    """The declarations of an op's public functions."""
    return [op.call, *(other.call for other in op.others)]


def source(face: Face) -> str:
    """The module of a framework's public functions, before formatting."""
    framework = "PyTorch" if face is TORCH else "JAX"
    names = [name for op in ops() for name in _names(op, face)]
    parts = [
        f'"""The public functions for {framework}: written by `make functions` from `ops/*/op.py`, not by hand."""',
        "from __future__ import annotations",
        IMPORTS[face],
        "\n".join(line for op in ops() for line in _imports(op, face)),
        f"__all__ = {sorted(names)!r}",
        f"_xp = {face.namespace}()",
        "\n".join(line for op in ops() for line in _bound(op, face)),
    ]
    for op in ops():
        parts.append(function(op.call, face))
        for other in op.others:
            parts.append(function(other.call, face) if isinstance(other, Stack) else caller(op, other, face))
    return "\n\n".join(parts) + "\n"


def _names(op: Op, face: Face) -> Iterator[str]:
    yield from (call.op for call in calls(op))
    yield from (kind.__name__ for kind in _bundles(op))
    yield from (name for names in _extra(op, face).values() for name in names)


def _imports(op: Op, face: Face) -> Iterator[str]:
    yield f"from .{op.name}.op import OP as {op.name.upper()}"
    for module, names in op.functions.items():
        yield f"from .{op.name}.{module} import {', '.join(names).upper()}"
    for kind in _bundles(op):
        yield f"from {kind.__module__} import {kind.__name__}"
    for module, names in _extra(op, face).items():
        yield f"from .{op.name}.{module} import {', '.join(names)}"


def _bound(op: Op, face: Face) -> Iterator[str]:
    yield f"_{op.name} = bind({op.name.upper()})"
    for other in op.others:
        name = other.call.op
        if isinstance(other, Stack):
            yield f"_{name} = bind_stack({op.name.upper()}, {name.upper()})"
            continue
        yield f"_check_{name} = checker({name.upper()}.call)"
        if other.kernels and face is TORCH:
            yield f"_kernels_{name} = bind_kernels({name.upper()})"


def _bundles(op: Op) -> set[type]:
    """The classes of the named tuples that an op's functions take or return."""
    return {bundle.kind for call in calls(op) for bundle in call.bundles.values()}


def _extra(op: Op, face: Face) -> dict[str, tuple[str, ...]]:
    """The modules of a framework with public names written by hand."""
    framework = "torch_" if face is TORCH else "jax_"
    return {module: names for module, names in op.extra.items() if module.startswith(framework)}
