"""selective_scan as both frameworks see it: its arrays and options, its checks, its two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.arrays import arrays_of
from retrograd.core.op import Fold, Layouts, Params, fold
from retrograd.core.program import Array, Program
from retrograd.core.xp import Namespace

from . import portable
from . import spec as specs
from .spec import Spec


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward pass: y, the final state where it is asked for, and the state that enters every chunk."""

    spec: Spec

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments that are there."""
        return tuple(self.spec.arrays())

    @property
    def outputs(self) -> tuple[Array, ...]:
        """y, final_state, states."""
        spec = self.spec
        final = spec.state if spec.return_final_state else None
        return arrays_of({}, y=spec.x, final_state=final, states=spec.kept)

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels; None for dtypes that they do not take."""
        from . import schedule

        if not specs.takes_kernels(self.spec):
            return None
        return schedule.forward(self.spec, self.inputs, self.outputs, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same without a kernel."""
        return portable.forward(xp, self.spec, arrays)


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass: the gradients of the arguments `wanted`."""

    spec: Spec
    wanted: frozenset[str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The gradients of the results, the arguments and the kept states, which hold the initial one for kernels."""
        results = ("dy", "dfinal_state") if self.spec.return_final_state else ("dy",)
        return (*results, *self.spec.arrays(), "states")

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The gradients wanted of the arguments that are there."""
        given = self.spec.arrays().items()
        return arrays_of({}, **{f"d{name}": param for name, param in given if name in self.wanted})

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels; None for dtypes that they do not take."""
        from . import schedule

        if not specs.takes_kernels(self.spec):
            return None
        return schedule.backward(self.spec, self.inputs, self.outputs, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same without a kernel."""
        return portable.backward(xp, self.spec, arrays)

    def recomputed(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The states."""
        return {"states": portable.forward(xp, self.spec, arrays)["states"]}


BATCHED = ("x", "dt", "z", "initial_state", "y", "final_state", "states")


class SelectiveScan:
    """The op."""

    name = specs.OP
    arguments: tuple[str, ...] = specs.ARGUMENTS
    indices: Mapping[str, Callable[[Spec], int]] = {"cu_seqlens": lambda spec: spec.time}
    options: Mapping[str, str] = {"dt_softplus": "bool", "return_final_state": "bool"}
    results: tuple[str, ...] = ("y", "final_state")
    kept: tuple[str, ...] = ("states",)
    whole: Mapping[str, Any] = {}

    def spec(self, params: Params, options: Mapping[str, Any]) -> Spec:
        """Check a call. Raises ValueError or TypeError."""
        return Spec.of(params, options)

    def forward(self, spec: Spec) -> Forward:
        """The forward pass."""
        return Forward(spec)

    def backward(self, spec: Spec, wanted: frozenset[str]) -> Backward:
        """The backward pass."""
        return Backward(spec, wanted.difference(self.indices))

    def same_gradient(self, spec: Spec) -> Mapping[str, str]:
        """Each argument has its own."""
        return {}

    def folds(self, spec: Spec, size: int) -> Iterator[Fold]:
        """The calls as more rows."""
        own = [name for name in "BC" if not spec.constant(name)]
        yield fold(self, spec, dict.fromkeys((*own, *BATCHED), 0), size)


OP = SelectiveScan()
