"""An implementation of an op: kernels, plan and launches, with a list of the arguments and options it supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .arch import Arch
from .program import Array, Program
from .rows import Layouts
from .spec import CallSpec, Pass

# Maps an implementation's plan to the plan to use instead; see `Op.replan`.
Replan = Callable[[Any], Any]


def names(text: str) -> frozenset[str]:
    """The names in a text, separated by spaces."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Implementation:
    """Kernels for some of an op's calls.

    Its package has a module `launches` with these functions, where `which` is the pass:

    - `suits(spec, arch, which)`: whether the kernels run this call, all of whose arguments and options are in `takes`.
    - `planned(spec, arch, which)`: the plan: tile sizes and the like, as one value.
    - `forward` and `backward(spec, inputs, outputs, layouts, arch, plan)`: the program.

    That module is imported only when a call is planned, because it imports the kernels and so Triton.

    Attributes:
        package: the name of its package.
        takes: the arguments and options that its kernels support. A call with any other argument, or with a non-default
            value of any other option, is passed on to the next implementation.
    """

    package: str
    takes: frozenset[str]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.package.rpartition(".")[2]

    def has(self, spec: CallSpec, arch: Arch, which: Pass) -> bool:
        """Whether it runs this pass of the call on the architecture."""
        return spec.uses <= self.takes and self._launches.suits(spec, arch, which)

    def program(
        self,
        spec: CallSpec,
        which: Pass,
        inputs: tuple[str, ...],
        outputs: tuple[Array, ...],
        layouts: Layouts,
        arch: Arch,
        replan: Replan | None,
    ) -> Program:
        """The program of a pass; `replan`, if not None, changes the plan first."""
        plan = self._launches.planned(spec, arch, which)
        if replan is not None:
            plan = replan(plan)
        schedule = self._launches.forward if which == "fwd" else self._launches.backward
        program: Program = schedule(spec, inputs, outputs, layouts, arch, plan)
        return program

    @property
    def _launches(self) -> Any:
        return import_module(f"{self.package}.launches")
