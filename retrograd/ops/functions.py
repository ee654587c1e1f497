"""The source of the public functions, from the ops' declarations; `make functions` writes the modules."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from retrograd.core.op import Op
from retrograd.core.spec import CallSpec
from retrograd.opinfo.writer import JAX, TORCH, Face, function, update

from .names import NAMES

FOLDER = Path(__file__).parent
FILES = {TORCH: "torch_functions.py", JAX: "jax_functions.py"}
IMPORTS = {
    TORCH: """\
import math
from typing import Literal, overload

import torch
from jaxtyping import Complex, Float, Int32
from torch import Tensor

from retrograd.core.errors import as_tuple
from retrograd.core.torch.arguments import as_array, torch_dtype
from retrograd.core.torch.op import bind
from retrograd.core.torch.checks import checker
from retrograd.core.torch.stack import bind_stack
""",
    JAX: """\
import math
from typing import Any, Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int32

from retrograd.core.errors import as_tuple
from retrograd.core.jax.arguments import as_array, jax_dtype
from retrograd.core.jax.checks import checker
from retrograd.core.jax.op import bind
from retrograd.core.jax.stack import bind_stack
""",
}


def ops() -> list[Op]:
    """Every op."""
    return [import_module(f"retrograd.ops.{name}.op").OP for name in NAMES]


def calls(op: Op) -> list[type[CallSpec]]:
    """The declarations of an op's public functions."""
    packed = None if op.packed is None else op.packed.call
    return [call for call in (op.call, packed, op.update) if call is not None]


def source(face: Face) -> str:
    """The module of a framework's public functions, before formatting."""
    framework = "PyTorch" if face is TORCH else "JAX"
    parts = [
        f'"""The public functions for {framework}: written by `make functions` from `ops/*/op.py`, not by hand."""',
        "from __future__ import annotations",
        IMPORTS[face],
        "\n".join(_imports(op, face) for op in ops()),
        "\n".join(f"_{op.name} = bind({op.name.upper()})" for op in ops()),
        "\n".join(
            f"_{op.packed.call.op} = bind_stack({op.name.upper()}, {op.packed.call.op.upper()})"
            for op in ops()
            if op.packed
        ),
        "\n".join(f"_check_{op.update.op} = checker({op.update.op.upper()})" for op in ops() if op.update),
    ]
    for op in ops():
        parts.append(function(op.call, face))
        if op.packed is not None:
            parts.append(function(op.packed.call, face))
        if op.update is not None:
            parts.append(update(op, op.update, face))
    written = [call.op for op in ops() for call in calls(op)]
    names = [*written, *(name for op in ops() for extra in _extra(op, face).values() for name in extra)]
    parts.insert(4, f"__all__ = {sorted(names)!r}")
    return "\n\n".join(parts) + "\n"


def _imports(op: Op, face: Face) -> str:
    lines = [f"from .{op.name}.op import OP as {op.name.upper()}"]
    if op.packed is not None:
        lines.append(f"from .{op.name}.packed import STACK as {op.packed.call.op.upper()}")
    if op.update is not None:
        lines.append(f"from .{op.name}.update import {op.update.__name__} as {op.update.op.upper()}")
        lines.append(f"from .{op.name}.update import update as step_of_{op.name}")
    lines += [f"from .{op.name}.{module} import {', '.join(names)}" for module, names in _extra(op, face).items()]
    return "\n".join(lines)


def _extra(op: Op, face: Face) -> dict[str, tuple[str, ...]]:
    """The modules of a framework with public names written by hand."""
    framework = "torch_" if face is TORCH else "jax_"
    return {module: names for module, names in op.extra.items() if module.startswith(framework)}
