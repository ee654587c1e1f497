"""Derivatives of every order and kind: every road on which PyTorch has them gives the reference's, or refuses by name.

All roads go to the same place. With a direction v_i for every input x_i and a gradient c_o for every output y_o, let

    L(x) = sum over o of Re <c_o, y_o(x)>,    P(x, c) = sum over i of Re <v_i, dL/dx_i>

A road gives dP/dx_i, which is the Hessian of L times v (`dd x`, ...), and the tangents of the outputs along v (`t y`,
...), which are dP/dc_o, or one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .budget import FEW_DRAWS, SLACK, draws_for
from .compare import assert_within_budget
from .contract import drawn
from .draw import Arrays, Function, differentiable, leaves, normal_as, options, output_name, outputs, upcast
from .integration import PassThrough


@dataclass(frozen=True)
class Point:
    """Where derivatives are taken.

    Attributes:
        function: the op or its reference; gives a tuple of outputs, from tensors by name.
        inputs: x, with what has no derivative.
        came_in: c.
        directions: v, by the names of the inputs that have a derivative.
    """

    function: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]
    inputs: Arrays
    came_in: list[Tensor]
    directions: Arrays

    @property
    def names(self) -> list[str]:
        """The inputs that have a derivative."""
        return list(self.directions)

    def outputs(self, *given: Tensor) -> tuple[Tensor, ...]:
        """y, a function of the inputs that have a derivative."""
        return self.function({**self.inputs, **dict(zip(self.names, given, strict=True))})

    def scalar(self, *given: Tensor) -> Tensor:
        """L."""
        return inner(self.outputs(*given), self.came_in)

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


def penalty(point: Point, given: Sequence[Tensor], came_in: Sequence[Tensor]) -> Tensor:
    """P, by a gradient that is made to be differentiated."""
    first = torch.autograd.grad(inner(point.outputs(*given), came_in), given, create_graph=True, allow_unused=True)
    there = [(g, v) for g, v in zip(first, point.v, strict=True) if g is not None]
    return inner(*zip(*there, strict=True))


def by_name(point: Point) -> Arrays:
    """`torch.autograd.grad(create_graph=True)`, then `torch.autograd.grad` of inputs and incoming gradients by name."""
    given, came_in = required(point.x), required(point.came_in)
    reached = [*given, *came_in]
    found = torch.autograd.grad(penalty(point, given, came_in), reached, allow_unused=True, materialize_grads=True)
    return hessian(point.names, found[: len(given)]) | tangents(found[len(given) :])


def one_by_one(point: Point) -> Arrays:
    """`backward(inputs=)`, for one input after the other."""
    given = required(point.x)
    loss = penalty(point, given, point.came_in)
    for tensor in given:
        loss.backward(inputs=[tensor], retain_graph=True)
    return hessian(point.names, gradients(given))


def backward(point: Point) -> Arrays:
    """`backward()` into `.grad`."""
    given = required(point.x)
    penalty(point, given, point.came_in).backward()
    return hessian(point.names, gradients(given))


def hvp(point: Point) -> Arrays:
    """`torch.autograd.functional.hvp`."""
    return hessian(point.names, torch.autograd.functional.hvp(point.scalar, point.x, point.v)[1])


def vhp(point: Point) -> Arrays:
    """`torch.autograd.functional.vhp`."""
    return hessian(point.names, torch.autograd.functional.vhp(point.scalar, point.x, point.v)[1])


def double_backward_jvp(point: Point) -> Arrays:
    """`torch.autograd.functional.jvp`, which differentiates a gradient by the gradient that comes in."""
    found = torch.autograd.functional.jvp(lambda *given: point.outputs(*given), point.x, point.v)[1]
    return tangents(found)


def dual_numbers(point: Point) -> Arrays:
    """`torch.autograd.forward_ad`."""
    with forward_ad.dual_level():
        made = point.outputs(*(forward_ad.make_dual(x, v) for x, v in zip(point.x, point.v, strict=True)))
        return tangents([forward_ad.unpack_dual(y).tangent for y in made])


def func_jvp(point: Point) -> Arrays:
    """`torch.func.jvp`."""
    return tangents(torch.func.jvp(point.outputs, point.x, point.v)[1])


def every(point: Point) -> tuple[int, ...]:
    """The places of all inputs that have a derivative, for `argnums`."""
    return tuple(range(len(point.names)))


def forward_over_reverse(point: Point) -> Arrays:
    """`torch.func.jvp` of `torch.func.grad`."""
    return hessian(point.names, torch.func.jvp(torch.func.grad(point.scalar, every(point)), point.x, point.v)[1])


def reverse_over_reverse(point: Point) -> Arrays:
    """`torch.func.vjp` of `torch.func.grad`."""
    return hessian(point.names, torch.func.vjp(torch.func.grad(point.scalar, every(point)), *point.x)[1](point.v))


def reverse_over_forward(point: Point) -> Arrays:
    """`torch.func.grad` of `torch.func.jvp`."""

    def along(*given: Tensor) -> Tensor:
        return inner(torch.func.jvp(point.outputs, given, point.v)[1], point.came_in)

    return hessian(point.names, torch.func.grad(along, every(point))(*point.x))


def required(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as leaves that require a gradient."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def gradients(leaves: Sequence[Tensor]) -> list[Tensor]:
    """What has come to leaves; zeros where nothing has."""
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


Road = Callable[[Point], Arrays]
OF_REAL_NUMBERS: tuple[Road, ...] = (hvp, vhp, double_backward_jvp)  # PyTorch's own functions take no others
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


def roads_of(room: Room, case: Case) -> list[str]:
    """The roads that a case is tried on; a case of nothing, on one."""
    if any(0 in tensor.shape for tensor in case.inputs.values()):
        return [by_name.__name__]
    if not room.stands_for_others(case):
        return []
    is_complex = any(tensor.dtype.startswith("complex") for tensor in case.inputs.values())
    return [name for name, road in ROADS.items() if not (is_complex and road in OF_REAL_NUMBERS)]


def check_road(room: Room, case: Case, road: str, device: str, seed: int) -> None:
    """On a road, derivatives keep the error budget that the reference's double backward in the same dtypes sets."""
    draws: list[tuple[Arrays, Arrays, Arrays]] = []
    for i in range(min(draws_for(case), FEW_DRAWS)):
        inputs, came_in = drawn(room, case, device, seed * 1000 + i)
        generator = torch.Generator(device).manual_seed(seed * 1000 + i)
        v = {name: normal_as(t.shape, t.dtype, generator) for name, t in inputs.items() if differentiable(t)}
        here = point(room.torch, case, inputs, came_in, v)
        plain = by_name(point(room.plain or room.reference, case, inputs, came_in, v))
        wide_inputs, wide_v = ({name: upcast(t) for name, t in given.items()} for given in (inputs, v))
        exact = by_name(point(room.reference, case, wide_inputs, [upcast(g) for g in came_in], wide_v, torch.float64))
        draws.append((ROADS[road](here), plain, exact))
    assert_within_budget(draws, f"{room.name}, {case.name}: {road}", SLACK)


def point(
    function: Function,
    case: Case,
    inputs: Mapping[str, Tensor],
    came_in: Sequence[Tensor],
    directions: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
) -> Point:
    """A point of a case, for the op or its reference; `dtype` is what options that are dtypes become."""
    chosen = options(case, dtype)
    return Point(lambda given: outputs(function, given, chosen), dict(inputs), list(came_in), dict(directions))


def check_batched_gradients(room: Room, case: Case, device: str, seed: int) -> None:
    """Gradients for several incoming ones at once (`is_grads_batched`, `torch.vmap`) are those for each by itself."""
    inputs, came_in = drawn(room, case, device, seed)
    given = leaves(inputs)
    wanted = [tensor for tensor in given.values() if tensor.requires_grad]
    made = outputs(room.torch, given, options(case))
    batch = [torch.stack([g, 2 * g, -g]) for g in came_in]

    def pull_back(*gradients: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(made, wanted, gradients, retain_graph=True)

    ways = {
        "is_grads_batched": torch.autograd.grad(made, wanted, batch, retain_graph=True, is_grads_batched=True),
        "vmap": torch.vmap(pull_back)(*batch),
    }
    for place in range(3):
        expected = pull_back(*(g[place] for g in batch))
        for way, found in ways.items():
            for name, several, alone in zip(given, found, expected, strict=False):
                where = f"{room.name}, {case.name}: {way}, {place}: d {name}"
                assert torch.equal(several[place], alone), f"{where} is another"


def check_refused_under_dispatch(room: Room, case: Case, device: str, seed: int) -> None:
    """Where PyTorch's dispatcher runs the op (dispatch modes, subclasses of Tensor), a second derivative is refused."""
    inputs, came_in = drawn(room, case, device, seed)
    v = {name: torch.ones_like(tensor) for name, tensor in inputs.items() if differentiable(tensor)}
    here = point(room.torch, case, inputs, came_in, v)
    for road in (by_name, one_by_one, backward):
        with PassThrough():
            try:
                road(here)
            except RuntimeError as refusal:
                text = str(refusal)
            else:
                raise AssertionError(f"{room.name}, {case.name}: {road.__name__} under a dispatch mode is not refused")
        told = f"retrograd.{room.name}_backward" in text and "autograd formula" in text
        assert told, f"{room.name}, {case.name}: {road.__name__} does not say what is refused: {text}"
