"""A step of generation has the bits of training: an op called on parts of a sequence has those of the whole.

The whole is called as in training, with gradients, the parts as in generation, without. JAX promises none of this where
there is no kernel: XLA compiles every length by itself, and may fuse a multiplication with an addition in one and not
in the next. As it compiles the ops when it optimises, it does not, and the checks hold there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .compare import assert_same_bits
from .draw import Arrays, Function, draw, leaves, options, output_name, outputs
from .parts import STATE, in_parts, is_packed, length, span, time_axis
from .poison import poisoned
from .verify import Framework

# Where kernels and portable paths change from one block of steps to the next.
EDGES = (16, 32, 64, 512)
MOST_STEPS = 64  # that are called one by one


def check_prefix(room: Room, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """Steps have the same bits whatever follows them: the first ones alone, or the last ones where `reverse` is set."""
    function, (inputs, given, whole) = called(room, framework), training(room, case, device, seed, framework)
    steps = length(room, case)
    for k in cuts(framework, steps, 1, steps // 2, steps - 1, *EDGES, *(edge + 1 for edge in EDGES)):
        y = generated(function, span(room, case, inputs, 0, k), given)["y"]
        expected = span(room, case, {"y": whole["y"]}, 0, k)
        assert_same_bits({"y": y}, expected, where(room, case, framework, f"{k} steps alone"))


def check_continue(room: Room, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """A sequence in two calls, the second from the state of the first, has the bits of the whole."""
    function, (inputs, given, whole) = called(room, framework), training(room, case, device, seed, framework)
    steps, multiple = length(room, case), room.continues
    for k in cuts(framework, steps, steps // 2 // multiple * multiple, multiple, (steps - 1) // multiple * multiple):
        found = generated(in_parts(room, case, function, (0, k, steps)), inputs, given)
        assert_same_bits(found, whole, where(room, case, framework, f"{k} steps, then the rest from their state"))


def check_step(room: Room, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """A sequence step by step has the bits of the whole; so it has by the function for a step, where there is one."""
    function, (inputs, given, whole) = called(room, framework), training(room, case, device, seed, framework)
    steps = min(length(room, case), MOST_STEPS)
    if steps < length(room, case):
        whole = generated(function, span(room, case, inputs, 0, steps), given)
    found = generated(in_parts(room, case, function, range(steps + 1)), inputs, given)
    assert_same_bits(found, whole, where(room, case, framework, "step by step"))
    update = room.update if framework == "torch" else room.jax_update and called_in_jax(room, room.jax_update())
    if update and not case.shared:  # a function for a step takes no array that is the same at all steps
        inputs |= {STATE: inputs.get(STATE, torch.zeros_like(whole[output_name(1)]))}
        found = generated(in_parts(room, case, by_update(room, case, update), range(steps + 1)), inputs, given)
        assert_same_bits(found, whole, where(room, case, framework, "by the function for a step"))


def cuts(framework: Framework, steps: int, *numbers: int) -> list[int]:
    """The numbers of steps that cut a sequence in two; in JAX the first alone, because XLA compiles every length."""
    return sorted({k for k in (numbers if framework == "torch" else numbers[:1]) if 0 < k < steps})


def has_prefixes(room: Room, case: Case) -> bool:
    """Whether steps follow others. A packed sequence has the bits that it has alone, so nothing is new in it."""
    return bool(room.time_axis) and not is_packed(case) and length(room, case) > 1


def can_be_cut(room: Room, case: Case) -> bool:
    """Whether a case can be continued, to the bit, from the state that some of its steps leave."""
    return has_prefixes(room, case) and 0 < room.continues < length(room, case)


def goes_by_steps(room: Room, case: Case) -> bool:
    """Whether a case can be called step by step."""
    return can_be_cut(room, case) and room.continues == 1


def training(
    room: Room, case: Case, device: str, seed: int, framework: Framework
) -> tuple[Arrays, dict[str, Any], Arrays]:
    """Inputs of a case, its options with the final state, and what the op makes of them."""
    inputs, given = draw(case, device, seed), options(case) | {"return_final_state": True}
    with poisoned():
        made = outputs(called(room, framework), leaves(inputs), given)
    return inputs, given, {output_name(i): tensor.detach() for i, tensor in enumerate(made)}


def generated(function: Function, inputs: Mapping[str, Tensor], given: Mapping[str, Any]) -> Arrays:
    """Results by name, where no gradient is wanted."""
    with poisoned(), torch.no_grad():
        return {output_name(i): tensor for i, tensor in enumerate(outputs(function, inputs, given))}


def called(room: Room, framework: Framework) -> Function:
    """The op in a framework, on PyTorch tensors either way."""
    return room.torch if framework == "torch" else called_in_jax(room, room.jax())


def called_in_jax(room: Room, function: Callable[..., Any]) -> Function:
    """A JAX function on PyTorch tensors, jitted."""
    from . import jax_call

    def call(*first: Tensor, **rest: Any) -> tuple[Tensor, ...]:
        given = dict(zip(room.arguments, first, strict=False)) | rest
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        return jax_call.forward(function, tensors, {name: given[name] for name in given if name not in tensors})

    return call


def by_update(room: Room, case: Case, update: Function) -> Function:
    """The function for a step of generation as one for a sequence of one step."""

    def one_step(first: Tensor, *, return_final_state: bool, reverse: bool = False, **rest: Any) -> tuple[Any, Any]:
        given = {room.arguments[0]: first} | rest
        axes = {name: time_axis(room, case, name) for name in given}
        step = {name: value if (axis := axes[name]) is None else value.squeeze(axis) for name, value in given.items()}
        y, state = update(state=step.pop(STATE), **step)
        return y.unsqueeze(axes[room.arguments[0]]), state

    return one_step


def where(room: Room, case: Case, framework: Framework, part: str) -> str:
    """What an error begins with."""
    return f"{room.name}, {case.name}, {framework}: {part}"
