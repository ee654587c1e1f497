"""linear_scan as both frameworks see it: arguments, checks, two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.arrays import arrays_of
from retrograd.core.errors import bad_type
from retrograd.core.op import Fold, Layouts, Params, fold
from retrograd.core.program import Array, Program
from retrograd.core.xp import Namespace

from . import portable
from .spec import OP as NAME
from .spec import Spec


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward pass of a checked call."""

    spec: Spec

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the arguments that are there."""
        return tuple(name for name in LinearScan.arguments if getattr(self.spec, name) is not None)

    @property
    def outputs(self) -> tuple[Array, ...]:
        """h, and the final state where it is asked for."""
        final = self.spec.final_state if self.spec.return_final_state else None
        return arrays_of({}, h=self.spec.b, final_state=final)

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels; None for float64."""
        if not self.spec.has_kernels:
            return None
        from . import schedule

        return schedule.forward(self.spec, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without a kernel."""
        return portable.forward(xp, self.spec, arrays)


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass of a checked call, for the gradients that are wanted."""

    spec: Spec
    wanted: frozenset[str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The results' gradients, a, and what the gradient of a is made of; b is not read."""
        spec = self.spec
        optional = {
            "dfinal_state": spec.return_final_state,
            "h": "a" in self.wanted,
            "initial_state": "a" in self.wanted and spec.initial_state is not None,
            "cu_seqlens": spec.cu_seqlens is not None,
        }
        names = ("dh", "dfinal_state", "a", "h", "initial_state", "cu_seqlens")
        return tuple(name for name in names if optional.get(name, True))

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The gradients that are wanted."""
        spec = self.spec
        params = {"a": spec.a, "b": spec.b, "initial_state": spec.initial_state}
        return arrays_of({}, **{f"d{name}": param for name, param in params.items() if name in self.wanted})

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels; None for float64."""
        if not self.spec.has_kernels:
            return None
        from . import schedule

        return schedule.backward(self.spec, layouts, arch, self.wanted)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without a kernel."""
        return portable.backward(xp, self.spec, arrays, self.wanted)

    def recomputed(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing: no arrays are kept."""
        return {}


class LinearScan:
    """The op; see `retrograd.core.op.Op`."""

    name = NAME
    arguments: tuple[str, ...] = ("a", "b", "initial_state", "cu_seqlens")
    indices: Mapping[str, Callable[[Spec], int]] = {"cu_seqlens": lambda spec: spec.time}
    options: Mapping[str, str] = {"reverse": "bool", "return_final_state": "bool"}
    results: tuple[str, ...] = ("h", "final_state")
    kept: tuple[str, ...] = ()
    whole: Mapping[str, Any] = {}

    def spec(self, params: Params, options: Mapping[str, Any]) -> Spec:
        """Check a call."""
        a, b = params["a"], params["b"]
        for name, param in (("a", a), ("b", b)):
            if param is None:
                raise bad_type(NAME, name, param, "an array")
        assert a is not None
        assert b is not None
        return Spec(a, b, params.get("initial_state"), params.get("cu_seqlens"), **options)

    def forward(self, spec: Spec) -> Forward:
        """The forward pass."""
        return Forward(spec)

    def backward(self, spec: Spec, wanted: frozenset[str]) -> Backward:
        """The backward pass."""
        return Backward(spec, wanted)

    def same_gradient(self, spec: Spec) -> Mapping[str, str]:
        """Each argument has its own."""
        return {}

    def folds(self, spec: Spec, size: int) -> Iterator[Fold]:
        """The calls as more rows, unless rows share a and calls do not."""
        own = () if spec.shares_batch else ("a",)
        yield fold(self, spec, dict.fromkeys((*own, "b", "initial_state", "h", "final_state"), 0), size)


OP = LinearScan()
