"""The implementations of an op: kernels with their plans, each with a list of what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .arch import Arch
from .program import Array, Program
from .rows import Layouts
from .spec import CallSpec, Pass

# From what an implementation has planned to what is to be planned instead; see `Op.replan`.
Replan = Callable[[Any], Any]


def names(text: str) -> frozenset[str]:
    """The names in a text, with spaces between them."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Implementation:
    """Kernels for some of an op's calls.

    Its package has a module `launches` with these functions, in which `which` is the pass:

    - `suits(spec, arch, which)`: whether the kernels are for a call of which `takes` names all that it uses.
    - `planned(spec, arch, which)`: tile sizes and the like, as one value.
    - `forward` and `backward(spec, inputs, outputs, layouts, arch, plan)`: the program.

    It is imported when a call is planned, since it imports the kernels, and these Triton.

    Attributes:
        package: where it is.
        takes: the arguments and options that its kernels honour. A call that uses another goes to the next
            implementation; an option that is not named here has its default.
    """

    package: str
    takes: frozenset[str]

    @property
    def name(self) -> str:
        """Its folder."""
        return self.package.rpartition(".")[2]

    def has(self, spec: CallSpec, arch: Arch, which: Pass) -> bool:
        """Whether it runs a pass."""
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
        """The kernels of a pass that it runs."""
        plan = self._launches.planned(spec, arch, which)
        if replan is not None:
            plan = replan(plan)
        schedule = self._launches.forward if which == "fwd" else self._launches.backward
        program: Program = schedule(spec, inputs, outputs, layouts, arch, plan)
        return program

    @property
    def _launches(self) -> Any:
        return import_module(f"{self.package}.launches")
