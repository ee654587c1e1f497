"""An op: its declared calls, its portable path and its implementations, as both frameworks use them.

`torch_op` turns it into a registered operator with a derivative, `jax_op` into a JAX primitive with one; neither knows
any mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, ClassVar, Protocol

from .arch import Arch
from .implementation import Implementation, Replan
from .program import Array, Program
from .rows import Layouts
from .spec import CallSpec, Fold, Params, Pass, arguments, options, with_gradients
from .xp import Namespace


class Call(Protocol):
    """One pass of an op on checked arguments. Hashable: equal calls share one compilation."""

    def __hash__(self) -> int: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays that it reads, in order.

        A backward call names the gradient of a result `d<result>`: one that is not read, because the user cannot reach
        the result, is not named. Everything else that it reads is an argument of the op or an output of its forward
        call, under that name.
        """

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The arrays that it computes, the same on every path and every architecture.

        A backward call names the gradient of an argument `d<argument>`.
        """

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels that read `inputs` and compute `outputs`; None where the portable path has to be taken."""

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs by name, from the inputs by name, without a kernel."""


@dataclass(frozen=True, eq=False)
class Op:
    """One op.

    Attributes:
        call: the class of its checked calls, which declares arguments, options and results.
        package: its folder; its module `portable` has `forward(xp, spec, arrays)`, `backward(xp, spec, arrays, wanted)`
            and, where arrays are kept for the backward pass, `recomputed(xp, spec, arrays)`, which computes them from
            the rest of what that reads.
        implementations: the kernels; the first that takes a call runs it.
        replan: changes what an implementation has planned: for tuners and tests.
        update: declares a call for one step of generation, where there is one: the module `update` of the package has a
            function `update(call, arrays, options)`, which makes it a call of the op.
        extra: what the faces have of the op beside these, written by hand: names that the modules `torch_generation`
            and `jax_generation` of the package define.
    """

    call: type[CallSpec]
    package: str
    implementations: tuple[Implementation, ...] = ()
    replan: Replan | None = None
    update: type[CallSpec] | None = None
    extra: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What users call it."""
        return self.call.op

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Its array arguments, in the order of the public function; the first is required."""
        return tuple(arguments(self.call))

    @cached_property
    def indices(self) -> Mapping[str, Callable[[Any], int]]:
        """The arguments that hold int32 numbers and have no gradient.

        With each, the upper bound of its numbers in a call; they must not decrease.
        """
        declared = arguments(self.call).items()
        return {name: partial(_size, a.reaches) for name, a in declared if a.reaches}

    @cached_property
    def options(self) -> Mapping[str, str]:
        """Its other arguments, in order, with their types in an operator schema."""
        return {name: declared.kind for name, declared in options(self.call).items()}

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Every array that a forward call may return to the user, in order."""
        return tuple(result.name for result in self.call.results)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Every other output of a forward call; the backward call reads it."""
        return tuple(result.name for result in self.call.kept)

    @property
    def whole(self) -> Mapping[str, Any]:
        """Options under which gradients of all results come into the backward pass."""
        return self.call.whole

    def spec(self, params: Params, options: Mapping[str, Any]) -> Any:
        """A checked call. Raises ValueError or TypeError, see `errors`."""
        return self.call.of(params, options)

    def forward(self, spec: Any) -> Forward:
        """The forward pass; its outputs are results and kept arrays, those that are there."""
        return Forward(self, spec)

    def backward(self, spec: Any, wanted: frozenset[str]) -> Backward:
        """The backward pass. Gradients of all results come in; it computes at least those of the arguments `wanted`."""
        return Backward(self, spec, wanted & differentiable(self))

    def same_gradient(self, spec: Any) -> Mapping[str, str]:
        """Argument -> another argument whose gradient is its own too, so that none is computed for it."""
        return spec.same_gradient()

    def folds(self, spec: Any, size: int) -> Iterable[Fold]:
        """Ways to fold `size` calls into one, the cheapest first; without one that fits, they run one by one."""
        return spec.folds(size)

    def implementation(self, spec: Any, arch: Arch, which: Pass) -> Implementation | None:
        """The one that runs a pass on an architecture; None where the portable path does."""
        return next((each for each in self.implementations if each.has(spec, arch, which)), None)

    @cached_property
    def formulas(self) -> Any:
        """The portable path."""
        return import_module(f"{self.package}.portable")

    def only(self, name: str) -> Op:
        """The op with one of its implementations alone; what that does not take has no kernel then."""
        left = tuple(each for each in self.implementations if each.name == name)
        if not left:
            names = ", ".join(each.name for each in self.implementations)
            raise ValueError(f"implementation is {name!r}, expected one of {names}")
        return replace(self, implementations=left)


@dataclass(frozen=True)
class OfOp:
    """A pass of an op."""

    op: Op
    spec: Any
    which: ClassVar[Pass]

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Call`."""
        raise NotImplementedError

    @property
    def computed(self) -> tuple[str, ...]:
        """The names of `outputs`."""
        raise NotImplementedError

    @cached_property
    def outputs(self) -> tuple[Array, ...]:
        """See `Call`."""
        return tuple(Array(name, p.shape, p.dtype) for name, p in self.spec.params(self.computed).items())

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """Of the first implementation that takes the call."""
        first = self.op.implementation(self.spec, arch, self.which)
        if first is None:
            return None
        return first.program(self.spec, self.which, self.inputs, self.outputs, layouts, arch, self.op.replan)


@dataclass(frozen=True)
class Forward(OfOp):
    """The arguments that are there -> results and kept arrays."""

    which = "fwd"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The arguments."""
        return self.spec.arguments

    @cached_property
    def computed(self) -> tuple[str, ...]:
        """Results and kept arrays."""
        return self.spec.computes()

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without a kernel."""
        found: Mapping[str, Any] = self.op.formulas.forward(xp, self.spec, arrays)
        return found


@dataclass(frozen=True)
class Backward(OfOp):
    """Gradients of results, arguments and what the forward pass computed -> gradients of arguments."""

    wanted: frozenset[str]
    which = "bwd"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """As the spec says."""
        return self.spec.reads(self.wanted)

    @cached_property
    def computed(self) -> tuple[str, ...]:
        """As the spec says."""
        return self.spec.makes(self.wanted)

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without a kernel."""
        found: Mapping[str, Any] = self.op.formulas.backward(xp, self.spec, arrays, self.wanted)
        return found

    def recomputed(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The kept arrays that it reads, from the other `inputs`, so that derivatives pass through them."""
        if not self.spec.kept:
            return {}
        found: Mapping[str, Any] = self.op.formulas.recomputed(xp, self.spec, arrays)
        return found


def _size(letter: str, spec: Any) -> int:
    size: int = spec.sizes[letter]
    return size


def differentiable(op: Op) -> frozenset[str]:
    """The arguments that have a gradient."""
    return with_gradients(op.call)


def gradients_of_results(op: Op) -> tuple[str, ...]:
    """The names that a backward call has for what comes in."""
    return tuple(f"d{name}" for name in op.results)


def saved_names(op: Op, backward: Call) -> tuple[str, ...]:
    """The arguments and outputs of the forward call that a backward call reads."""
    return tuple(name for name in backward.inputs if name not in gradients_of_results(op))


def gradient_names(op: Op, spec: Any) -> tuple[str, ...]:
    """The name that a backward call has for the gradient of each argument."""
    same = op.same_gradient(spec)
    return tuple(f"d{same.get(name, name)}" for name in op.arguments)
