"""Second derivatives by every PyTorch API ("road"): equal to the reference's, or refused with an error.

All roads compute the same quantities. With a direction v_i for every input x_i and a gradient c_o for every output y_o,
let

    L(x) = sum over o of Re <c_o, y_o(x)>,    P(x, c) = sum over i of Re <v_i, dL/dx_i>

A road computes dP/dx_i, which is the Hessian of L times v (`dd x`, ...), the tangents of the outputs along v (`t y`,
...), which are dP/dc_o, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.budget import FEW_DRAWS, SLACK, draws_for
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import (
    Arrays,
    Function,
    differentiable,
    leaves,
    normal_as,
    options,
    output_name,
    outputs,
    upcast,
)

from .contract import drawn
from .integration import PassThrough


@dataclass(frozen=True)
class Point:
    """The point at which derivatives are computed.

    Attributes:
        function: the op or its reference, from tensors by name to a tuple of outputs.
        inputs: x and the inputs that have no derivative.
        incoming: c.
        directions: v, by the names of the inputs that have a derivative.
    """

    function: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]
    inputs: Arrays
    incoming: list[Tensor]
    directions: Arrays

    @property
    def names(self) -> list[str]:
        """The inputs that have a derivative."""
        return list(self.directions)

    def outputs(self, *x: Tensor) -> tuple[Tensor, ...]:
        """y, a function of the inputs that have a derivative."""
        return self.function({**self.inputs, **dict(zip(self.names, x, strict=True))})

    def scalar(self, *x: Tensor) -> Tensor:
        """L."""
        return inner(self.outputs(*x), self.incoming)

    @property
    def x(self) -> tuple[Tensor, ...]:
        """The inputs that have a derivative."""
        return tuple(self.inputs[name] for name in self.names)

    @property
    def v(self) -> tuple[Tensor, ...]:
        """Their directions."""
        return tuple(self.directions.values())


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The sum of Re <a, b>, in float32 at least."""
    return sum(
        ((x * y.conj()).real.to(wide(x)).sum() for x, y in zip(a, b, strict=True)), torch.zeros((), device=a[0].device)
    )


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype of sums over a tensor."""
    return torch.promote_types(tensor.real.dtype, torch.float32)


def hessian(names: Sequence[str], found: Sequence[Tensor]) -> Arrays:
    """dP/dx, named."""
    return {f"dd {name}": tensor for name, tensor in zip(names, found, strict=True)}


def tangents(found: Sequence[Tensor]) -> Arrays:
    """Tangents, named."""
    return {f"t {output_name(i)}": tensor for i, tensor in enumerate(found)}


def penalty(point: Point, x: Sequence[Tensor], incoming: Sequence[Tensor]) -> Tensor:
    """P, from a gradient computed with `create_graph=True`."""
    first = torch.autograd.grad(inner(point.outputs(*x), incoming), x, create_graph=True, allow_unused=True)
    pairs = [(g, v) for g, v in zip(first, point.v, strict=True) if g is not None]
    return inner(*zip(*pairs, strict=True))


def by_name(point: Point) -> Arrays:
    """`torch.autograd.grad(create_graph=True)`, then `torch.autograd.grad` for inputs and incoming gradients."""
    x, incoming = required(point.x), required(point.incoming)
    variables = [*x, *incoming]
    found = torch.autograd.grad(penalty(point, x, incoming), variables, allow_unused=True, materialize_grads=True)
    return hessian(point.names, found[: len(x)]) | tangents(found[len(x) :])


def one_by_one(point: Point) -> Arrays:
    """`backward(inputs=)`, one input at a time."""
    x = required(point.x)
    loss = penalty(point, x, point.incoming)
    for tensor in x:
        loss.backward(inputs=[tensor], retain_graph=True)
    return hessian(point.names, gradients(x))


def backward(point: Point) -> Arrays:
    """`backward()` into `.grad`."""
    x = required(point.x)
    penalty(point, x, point.incoming).backward()
    return hessian(point.names, gradients(x))


def hvp(point: Point) -> Arrays:
    """`torch.autograd.functional.hvp`."""
    return hessian(point.names, torch.autograd.functional.hvp(point.scalar, point.x, point.v)[1])


def vhp(point: Point) -> Arrays:
    """`torch.autograd.functional.vhp`."""
    return hessian(point.names, torch.autograd.functional.vhp(point.scalar, point.x, point.v)[1])


def double_backward_jvp(point: Point) -> Arrays:
    """`torch.autograd.functional.jvp`, which differentiates a gradient with respect to the incoming gradient."""
    found = torch.autograd.functional.jvp(lambda *x: point.outputs(*x), point.x, point.v)[1]
    return tangents(found)


def dual_numbers(point: Point) -> Arrays:
    """`torch.autograd.forward_ad`."""
    with forward_ad.dual_level():
        results = point.outputs(*(forward_ad.make_dual(x, v) for x, v in zip(point.x, point.v, strict=True)))
        return tangents([forward_ad.unpack_dual(y).tangent for y in results])


def func_jvp(point: Point) -> Arrays:
    """`torch.func.jvp`."""
    return tangents(torch.func.jvp(point.outputs, point.x, point.v)[1])


def every(point: Point) -> tuple[int, ...]:
    """The positions of all inputs that have a derivative, for `argnums`."""
    return tuple(range(len(point.names)))


def forward_over_reverse(point: Point) -> Arrays:
    """`torch.func.jvp` of `torch.func.grad`."""
    return hessian(point.names, torch.func.jvp(torch.func.grad(point.scalar, every(point)), point.x, point.v)[1])


def reverse_over_reverse(point: Point) -> Arrays:
    """`torch.func.vjp` of `torch.func.grad`."""
    return hessian(point.names, torch.func.vjp(torch.func.grad(point.scalar, every(point)), *point.x)[1](point.v))


def reverse_over_forward(point: Point) -> Arrays:
    """`torch.func.grad` of `torch.func.jvp`."""

    def along(*x: Tensor) -> Tensor:
        return inner(torch.func.jvp(point.outputs, x, point.v)[1], point.incoming)

    return hessian(point.names, torch.func.grad(along, every(point))(*point.x))


def required(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as leaves that require a gradient."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def gradients(leaves: Sequence[Tensor]) -> list[Tensor]:
    """The `.grad` of each leaf; zeros where it is None."""
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


Road = Callable[[Point], Arrays]
OF_REAL_NUMBERS: tuple[Road, ...] = (hvp, vhp, double_backward_jvp)  # these do not support complex numbers
ROADS: dict[str, Road] = {
    road.__name__: road
    for road in (
        by_name,
        one_by_one,
        backward,
        dual_numbers,
        func_jvp,
        forward_over_reverse,
        reverse_over_reverse,
        reverse_over_forward,
        *OF_REAL_NUMBERS,
    )
}


def roads_of(info: OpInfo, case: Case) -> list[str]:
    """The roads on which a case is tested; an empty case, on one."""
    if any(0 in tensor.shape for tensor in case.inputs.values()):
        return [by_name.__name__]
    if not info.is_representative(case):
        return []
    is_complex = any(tensor.dtype.startswith("complex") for tensor in case.inputs.values())
    return [name for name, road in ROADS.items() if not (is_complex and road in OF_REAL_NUMBERS)]


def check_road(info: OpInfo, case: Case, road: str, device: str, seed: int) -> None:
    """Derivatives by a road are within the error budget set by the reference's double backward in the same dtypes."""
    draws: list[tuple[Arrays, Arrays, Arrays]] = []
    for i in range(min(draws_for(case), FEW_DRAWS)):
        inputs, incoming = drawn(info, case, device, seed * 1000 + i)
        generator = torch.Generator(device).manual_seed(seed * 1000 + i)
        v = {name: normal_as(t.shape, t.dtype, generator) for name, t in inputs.items() if differentiable(t)}
        here = point(info.torch, case, inputs, incoming, v)
        plain = by_name(point(info.plain or info.reference, case, inputs, incoming, v))
        wide_inputs, wide_v = ({name: upcast(t) for name, t in tensors.items()} for tensors in (inputs, v))
        exact = by_name(point(info.reference, case, wide_inputs, [upcast(g) for g in incoming], wide_v, torch.float64))
        draws.append((ROADS[road](here), plain, exact))
    assert_within_budget(draws, f"{info.name}, {case.name}: {road}", SLACK)


def point(
    function: Function,
    case: Case,
    inputs: Mapping[str, Tensor],
    incoming: Sequence[Tensor],
    directions: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
) -> Point:
    """A point of a case, for the op or its reference; `dtype` replaces the value of options that are dtypes."""
    chosen = options(case, dtype)
    return Point(lambda tensors: outputs(function, tensors, chosen), dict(inputs), list(incoming), dict(directions))


def check_batched_gradients(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """Gradients for a batch of incoming gradients (`is_grads_batched`, `torch.vmap`) equal those for each one alone."""
    inputs, incoming = drawn(info, case, device, seed)
    arguments = leaves(inputs)
    wanted = [tensor for tensor in arguments.values() if tensor.requires_grad]
    results = outputs(info.torch, arguments, options(case))
    batch = [torch.stack([g, 2 * g, -g]) for g in incoming]

    def pull_back(*gradients: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(results, wanted, gradients, retain_graph=True)

    ways = {
        "is_grads_batched": torch.autograd.grad(results, wanted, batch, retain_graph=True, is_grads_batched=True),
        "vmap": torch.vmap(pull_back)(*batch),
    }
    for place in range(3):
        expected = pull_back(*(g[place] for g in batch))
        for way, found in ways.items():
            for name, several, alone in zip(arguments, found, expected, strict=False):
                where = f"{info.name}, {case.name}: {way}, {place}: d {name}"
                assert torch.equal(several[place], alone), f"{where} is another"


def check_refused_under_dispatch(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """Through PyTorch's dispatcher (dispatch modes, subclasses of Tensor), second derivatives raise an error."""
    inputs, incoming = drawn(info, case, device, seed)
    v = {name: torch.ones_like(tensor) for name, tensor in inputs.items() if differentiable(tensor)}
    here = point(info.torch, case, inputs, incoming, v)
    for road in (by_name, one_by_one, backward):
        with PassThrough():
            try:
                road(here)
            except RuntimeError as refusal:
                text = str(refusal)
            else:
                raise AssertionError(f"{info.name}, {case.name}: {road.__name__} under a dispatch mode is not refused")
        is_named = f"retrograd.{info.name}_backward" in text and "autograd formula" in text
        assert is_named, f"{info.name}, {case.name}: {road.__name__} does not say what is refused: {text}"
