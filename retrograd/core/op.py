"""What an op tells both frameworks about itself: its arguments, its checks, and its two passes.

A room writes one `Op`. `torch_op` turns it into a registered operator with a derivative, `jax_op` into a JAX primitive
with one; neither knows any mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .arch import Arch
from .program import Array, Program
from .rows import Layout
from .xp import Namespace

Layouts = Mapping[str, Layout]  # by array name; an array that is not named is dense


@dataclass(frozen=True, slots=True)
class Param:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str


Params = Mapping[str, Param | None]  # by argument; None where an optional argument is absent


class Call(Protocol):
    """One pass of an op on checked arguments. Hashable: equal calls share one compilation."""

    def __hash__(self) -> int: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays that are there to be read, in order.

        A backward call names the gradient of a result `d<result>`: one that is not read, because the user cannot reach
        the result, is not named. Everything else that it reads is an argument of the op or an output of its forward
        call, under that name.
        """

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The arrays that are made, the same on every path and every architecture.

        A backward call names the gradient of an argument `d<argument>`.
        """

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The kernels that read `inputs` and make `outputs`; None where the portable path has to be taken."""

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs by name, from the inputs by name, without a kernel."""


class BackwardCall(Call, Protocol):
    """A backward pass."""

    def remade(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The kept arrays that it reads, from the other `inputs`, so that derivatives pass through them."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Several calls as one, for `jax.vmap`.

    Attributes:
        spec: the one call.
        axes: array -> the axis along which the calls follow each other, or None where each has a place along a new
            first axis. What is not named here is shared by all calls.
    """

    spec: Any
    axes: Mapping[str, int | None]


class Op(Protocol):
    """One op, as a room defines it.

    Attributes:
        name: what users call it.
        arguments: its array arguments, in the order of the public function; the first is required.
        indices: the arguments that hold int32 numbers and have no gradient, each with what its numbers, which do not
            fall, may reach in a call.
        options: its other arguments, in order, with their types in an operator schema, such as `bool`, `float`, `str?`.
        results: every array that a forward call may return to the user, in order.
        kept: every other output of a forward call; the backward call reads it.
        whole: options under which gradients of all results that a forward call makes come in; others stay as they are.
    """

    name: str
    arguments: tuple[str, ...]
    indices: Mapping[str, Callable[[Any], int]]
    options: Mapping[str, str]
    results: tuple[str, ...]
    kept: tuple[str, ...]
    whole: Mapping[str, Any]

    def __hash__(self) -> int: ...

    def spec(self, params: Params, options: Mapping[str, Any]) -> Any:
        """A checked call: hashable, with each argument's `Param` or None and each option under its name.

        Raises ValueError or TypeError, see `errors`.
        """

    def forward(self, spec: Any) -> Call:
        """The forward pass; its outputs are results and kept arrays, those that are there."""

    def backward(self, spec: Any, wanted: frozenset[str]) -> BackwardCall:
        """The backward pass. Gradients of all results come in; it makes at least those of the arguments `wanted`."""

    def same_gradient(self, spec: Any) -> Mapping[str, str]:
        """Argument -> another argument whose gradient is its own too, so that none is made for it."""

    def folds(self, spec: Any, size: int) -> Iterable[Fold]:
        """Ways to fold `size` calls into one, the cheapest first; without one that fits, they run one by one."""


def differentiable(op: Op) -> frozenset[str]:
    """The arguments that have a gradient."""
    return frozenset(op.arguments).difference(op.indices)


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


def fold(op: Op, spec: Any, axes: Mapping[str, int | None], size: int, **options: Any) -> Fold:
    """The fold of `size` calls along `axes`, in which gradients lie as what they are gradients of.

    Args:
        op: the op.
        spec: each of the calls.
        axes: as `Fold.axes`, of arguments, results and kept arrays.
        size: how many calls.
        options: those that the one call has in place of theirs.
    """

    def folded(name: str) -> Param | None:
        param: Param | None = getattr(spec, name)
        if param is None or name not in axes:
            return param
        axis, shape = axes[name], param.shape
        if axis is None:
            return replace(param, shape=(size, *shape))
        return replace(param, shape=(*shape[:axis], size * shape[axis], *shape[axis + 1 :]))

    theirs = {name: getattr(spec, name) for name in op.options}
    gradients = {f"d{name}": axis for name, axis in axes.items()}
    return Fold(op.spec({name: folded(name) for name in op.arguments}, theirs | options), gradients | dict(axes))
