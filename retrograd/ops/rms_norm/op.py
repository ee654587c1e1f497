"""rms_norm as both frameworks see it: its arrays and options, its checks, its two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.arrays import arrays_of
from retrograd.core.op import Fold, Layouts, Param, Params, fold
from retrograd.core.program import Array, Program
from retrograd.core.xp import Namespace

from . import portable
from .spec import OP as NAME
from .spec import Spec

PARAMETERS = ("weight", "bias")
TILES = ("x", "residual", "gate", "y", "sum", "rstd")  # they have the rows of x


@dataclass(frozen=True, slots=True)
class Forward:
    """The arguments -> y, sum, rstd, each where it is there."""

    spec: Spec

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments that are there."""
        return tuple(name for name in RMSNorm.arguments if getattr(self.spec, name) is not None)

    @property
    def outputs(self) -> tuple[Array, ...]:
        """y, the sum of x and the residual, rstd."""
        spec = self.spec
        return arrays_of({}, y=Param(spec.x.shape, spec.out_dtype), sum=spec.sum, rstd=spec.rstd)

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels; None for float64."""
        if not self.spec.has_kernels:
            return None
        from . import schedule

        return schedule.forward(self.spec, self.inputs, self.outputs, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without a kernel."""
        return portable.forward(xp, self.spec, arrays)


@dataclass(frozen=True, slots=True)
class Backward:
    """The gradients that come in, what was normalised, and the parameters -> the gradients."""

    spec: Spec
    parameters: bool  # whether the gradients of weight and bias are wanted

    @property
    def inputs(self) -> tuple[str, ...]:
        """dy, dsum, x or the sum, gate, weight, bias and rstd, as far as they are there; bias behind a gate alone."""
        spec = self.spec
        there = {
            "dsum": spec.has_dsum,
            "gate": spec.gate is not None,
            "weight": spec.weight is not None,
            "bias": spec.bias is not None and spec.gate_last,
        }
        names = ("dy", "dsum", "sum" if spec.residual else "x", "gate", "weight", "bias", "rstd")
        return tuple(name for name in names if there.get(name, True))

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The gradients of x, residual and gate, wanted or not, and of the parameters, both or none.

        dresidual is not there where dx serves as it.
        """
        spec = self.spec
        return arrays_of(
            {},
            dx=spec.x,
            dresidual=spec.residual if spec.separate_dresidual else None,
            dgate=spec.gate,
            dweight=spec.weight if self.parameters else None,
            dbias=spec.bias if self.parameters else None,
        )

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels; None for float64."""
        if not self.spec.has_kernels:
            return None
        from . import schedule

        return schedule.backward(self.spec, self.inputs, self.outputs, layouts, arch)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without a kernel."""
        return portable.backward(xp, self.spec, arrays)

    def remade(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """rstd."""
        return {"rstd": portable.rstd(xp, self.spec, arrays)}


class RMSNorm:
    """The op; see `core.op.Op`."""

    name = NAME
    arguments: tuple[str, ...] = ("x", "weight", "bias", "residual", "gate")
    indices: Mapping[str, Callable[[Spec], int]] = {}
    options: Mapping[str, str] = {
        "eps": "float",
        "weight_offset": "float",
        "group_size": "SymInt?",
        "norm_before_gate": "bool",
        "prenorm": "bool",
        "out_dtype": "ScalarType?",
    }
    results: tuple[str, ...] = ("y", "sum")
    kept: tuple[str, ...] = ("rstd",)
    whole: Mapping[str, Any] = {"prenorm": True}

    def spec(self, params: Params, options: Mapping[str, Any]) -> Spec:
        """Check a call."""
        return Spec.of(params, options)

    def forward(self, spec: Spec) -> Forward:
        """The forward pass."""
        return Forward(spec)

    def backward(self, spec: Spec, wanted: frozenset[str]) -> Backward:
        """The backward pass."""
        return Backward(spec, not wanted.isdisjoint(PARAMETERS))

    def same_gradient(self, spec: Spec) -> Mapping[str, str]:
        """dx serves as dresidual too, unless their dtypes differ."""
        return {"residual": "x"} if spec.residual and not spec.separate_dresidual else {}

    def folds(self, spec: Spec, size: int) -> Iterator[Fold]:
        """The calls as more rows where they share the parameters; else as more heads or groups, each with its own."""
        yield fold(self, spec, dict.fromkeys(TILES), size)
        per_head = any(param is not None and len(param.shape) == 2 for param in (spec.weight, spec.bias))
        axis = len(spec.x.shape) - (2 if per_head else 1)
        axes = dict.fromkeys(TILES, axis) | dict.fromkeys(PARAMETERS, 0)
        yield fold(self, spec, axes, size, group_size=None if per_head else spec.N)


OP = RMSNorm()
