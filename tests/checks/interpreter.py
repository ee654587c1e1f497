"""Runs the public functions on CPU tensors in Triton's interpreter, with the bindings, plans and kernels of a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.program import Program
from retrograd.core.torch import launch as torch_launch
from retrograd.core.torch.passes import Launchers
from retrograd.opinfo.cases import Case, in_dtypes

ACTIVE = os.environ.get("TRITON_INTERPRET") == "1"


def in_order(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """total + a b, added in order: NumPy's own product has an order that depends on the sizes."""
    total = total.copy()
    for k in range(a.shape[-1]):
        total += a[..., k : k + 1].astype(total.dtype) * b[..., k : k + 1, :].astype(total.dtype)
    return total


def _dot(_: Any, a: Any, b: Any, total: Any, *precision: Any) -> Any:
    return interpreter.TensorHandle(in_order(a.data, b.data, total.data), total.dtype.scalar)


def _called(self: Any, *args: Any, **named: Any) -> Any:
    """A function that a kernel calls: Triton would replace the functions of its language again, a third of the time."""
    try:
        return self.rewrite()(*args, **named)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


if ACTIVE:
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter.InterpreterBuilder.create_dot = _dot
    # At the launch of a kernel they are replaced in both modules from which a function may take them.
    _replaced, _everywhere = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda kernel: _replaced(_everywhere)
    interpreter.InterpretedFunction.__call__ = _called
    # Sums of integers are looked at for overflow only to be asserted where Triton debugs, which it does not here.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


class Interpreter(torch_launch.Launcher):
    """Runs programs planned for `arch` in the interpreter; outputs and scratch are initialised with NaN."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch

    def arch_of(self, device: torch.device) -> Arch:
        """The architecture for which programs are planned."""
        return self.arch

    def prepare(
        self,
        program: Program,
        inputs: Sequence[str],
        outputs: Sequence[str | None],
        arch: Arch,
        device: torch.device,
    ) -> torch_launch.Runner:
        """A function that runs the program on tensors."""
        places = [inputs.index(array.name) for array in program.inputs]

        def run(tensors: Sequence[Any]) -> list[Any]:
            results = torch_launch.interpret(program, [tensors[place] for place in places])
            by_name = {array.name: tensor for array, tensor in zip(program.returned, results, strict=True)}
            return [None if name is None else by_name.get(name) for name in outputs]

        return run

    def begin(self, programs: Sequence[Program], arch: Arch, device: torch.device) -> None:
        """Nothing has to be compiled."""


@contextmanager
def interpreted(arch: str = "sm_80") -> Iterator[None]:
    """A context in which every op runs its kernels in the interpreter, planned for `arch`.

    Gluon has no interpreter, so the default is an architecture without Gluon kernels.
    """
    if not ACTIVE:
        raise RuntimeError("the process must start with TRITON_INTERPRET=1")
    with launched_by(Interpreter(SUPPORTED[arch])):
        yield


@contextmanager
def launched_by(launcher: torch_launch.Launcher) -> Iterator[None]:
    """A context in which another launcher runs the programs of every op."""
    usual = Launchers.current
    forget_plans()
    Launchers.current = launcher
    try:
        yield
    finally:
        Launchers.current = usual
        forget_plans()


def forget_plans() -> None:
    """Empty all caches of the loaded modules, so that plans cached with another launcher are not reused."""
    for module in loaded_modules():
        for value in list(vars(module).values()):
            methods = list(vars(value).values()) if isinstance(value, type) else []
            for cached in (value, *methods):
                if clear := getattr(cached, "cache_clear", None):
                    clear_cache: Callable[[], None] = clear
                    clear_cache()


def loaded_modules() -> list[Any]:
    """The loaded modules of the library."""
    return [module for name, module in sys.modules.items() if name.startswith("retrograd.")]


def as_float16(case: Case) -> Case:
    """The case with float16 instead of bfloat16, because the interpreter truncates to bfloat16 where a GPU rounds."""
    return in_dtypes(case, {"bfloat16": "float16"})
