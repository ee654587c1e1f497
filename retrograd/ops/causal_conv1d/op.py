"""causal_conv1d as both frameworks see it."""

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
from .spec import NAME, Spec


@dataclass(frozen=True, slots=True)
class Forward:
    """(x, weight, bias, initial_state, cu_seqlens) -> (y, final_state), each where it is there."""

    spec: Spec

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments that are there."""
        return tuple(name for name in CausalConv1d.arguments if getattr(self.spec, name) is not None)

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The results that are there."""
        return arrays_of({}, y=self.spec.x, final_state=self.spec.state if self.spec.return_final_state else None)

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels, for widths and dtypes that have them."""
        if not self.spec.has_kernel:
            return None
        from . import schedule

        return schedule.forward(self.spec, self.inputs, self.outputs, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The results without a kernel."""
        return portable.forward(xp, self.spec, arrays)


@dataclass(frozen=True, slots=True)
class Backward:
    """(dy, dfinal_state, and the arguments that are needed) -> the gradients wanted."""

    spec: Spec
    wanted: frozenset[str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The gradients that come in, then the arguments: without an activation, x is needed for dweight alone."""
        spec = self.spec
        names = ["dy"] + (["dfinal_state"] if spec.return_final_state else [])
        names += ["x"] if self.reads_inputs else []
        names += ["weight"] + (["bias"] if spec.bias is not None and spec.silu else [])
        names += ["initial_state"] if spec.initial_state is not None and self.reads_inputs else []
        return (*names, *(["cu_seqlens"] if spec.packed else []))

    @property
    def reads_inputs(self) -> bool:
        """Whether the inputs of the forward pass are needed: for the pre-activation, or for dweight."""
        return self.spec.silu or "weight" in self.wanted

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The gradients of the arguments that are there and wanted."""
        made = [name for name in CausalConv1d.arguments if name in self.wanted.difference(CausalConv1d.indices)]
        return arrays_of({}, **{f"d{name}": getattr(self.spec, name) for name in made})

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels, for widths and dtypes that have them."""
        if not self.spec.has_kernel:
            return None
        from . import schedule

        return schedule.backward(self.spec, self.inputs, self.outputs, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The gradients without a kernel."""
        return portable.backward(xp, self.spec, arrays, self.wanted)

    def recomputed(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing: no arrays are kept."""
        return {}


class CausalConv1d:
    """The op; see `core.op.Op`."""

    name: str = NAME
    arguments: tuple[str, ...] = ("x", "weight", "bias", "initial_state", "cu_seqlens")
    indices: Mapping[str, Callable[[Spec], int]] = {"cu_seqlens": lambda spec: spec.T}
    options: Mapping[str, str] = {"activation": "str?", "return_final_state": "bool"}
    results: tuple[str, ...] = ("y", "final_state")
    kept: tuple[str, ...] = ()
    whole: Mapping[str, Any] = {}

    def spec(self, params: Params, options: Mapping[str, Any]) -> Spec:
        """Check a call."""
        if params["weight"] is None:
            raise bad_type(NAME, "weight", None, "an array")
        return Spec(**params, **options)  # type: ignore[arg-type]

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
        """The calls as more rows."""
        yield fold(self, spec, dict.fromkeys(("x", "initial_state", "y", "final_state"), 0), size)


OP = CausalConv1d()
