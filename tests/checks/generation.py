"""Generation has the bits of training: calls on parts of a sequence are bitwise equal to one call on the whole.

The whole is called as in training, with gradients; the parts as in generation, without. For JAX without a kernel this
is not guaranteed: XLA compiles every length separately, and may fuse a multiplication with an addition for one length
and not for another. With XLA's default optimisation level it does not, and these checks pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import Arrays, Function, draw, leaves, options, output_name, outputs
from retrograd.testing.poison import poisoned
from retrograd.testing.verify import Framework

from .parts import STATE, in_parts, is_packed, length, span, time_axis

# Steps at which kernels and portable paths begin a new block.
EDGES = (16, 32, 64, 512)
MOST_STEPS = 64  # in check_step


def check_prefix(info: OpInfo, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """The first steps alone (the last ones if `reverse` is set) have the same bits as in the whole sequence."""
    function, (inputs, chosen, whole) = called(info, framework), training(info, case, device, seed, framework)
    steps = length(info, case)
    for k in cuts(framework, steps, 1, steps // 2, steps - 1, *EDGES, *(edge + 1 for edge in EDGES)):
        y = generated(function, span(info, case, inputs, 0, k), chosen)["y"]
        expected = span(info, case, {"y": whole["y"]}, 0, k)
        assert_same_bits({"y": y}, expected, where(info, case, framework, f"{k} steps alone"))


def check_continue(info: OpInfo, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """A sequence in two calls, the second starting from the final state of the first, has the bits of the whole."""
    function, (inputs, chosen, whole) = called(info, framework), training(info, case, device, seed, framework)
    steps, multiple = length(info, case), info.continues
    for k in cuts(framework, steps, steps // 2 // multiple * multiple, multiple, (steps - 1) // multiple * multiple):
        found = generated(in_parts(info, case, function, (0, k, steps)), inputs, chosen)
        assert_same_bits(found, whole, where(info, case, framework, f"{k} steps, then the rest from their state"))


def check_step(info: OpInfo, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """A sequence called step by step has the bits of the whole, by the op and by its single-step function, if any."""
    function, (inputs, chosen, whole) = called(info, framework), training(info, case, device, seed, framework)
    steps = min(length(info, case), MOST_STEPS)
    if steps < length(info, case):
        whole = generated(function, span(info, case, inputs, 0, steps), chosen)
    found = generated(in_parts(info, case, function, range(steps + 1)), inputs, chosen)
    assert_same_bits(found, whole, where(info, case, framework, "step by step"))
    update = info.update if framework == "torch" else info.jax_update and called_in_jax(info, info.jax_update())
    if update and not case.shared:  # a single-step function takes no array shared by all steps
        inputs |= {STATE: inputs.get(STATE, torch.zeros_like(whole[output_name(1)]))}
        found = generated(in_parts(info, case, by_update(info, case, update), range(steps + 1)), inputs, chosen)
        assert_same_bits(found, whole, where(info, case, framework, "by the function for a step"))


def cuts(framework: Framework, steps: int, *numbers: int) -> list[int]:
    """The valid places to cut a sequence; in JAX at most the first one, because XLA compiles every length."""
    return sorted({k for k in (numbers if framework == "torch" else numbers[:1]) if 0 < k < steps})


def has_prefixes(info: OpInfo, case: Case) -> bool:
    """Whether a case has several steps and is not packed: `check_packed` covers packed sequences."""
    return bool(info.time_axis) and not is_packed(case) and length(info, case) > 1 and info.causal(case)


def can_be_cut(info: OpInfo, case: Case) -> bool:
    """Whether a case can be continued, bitwise, from the state after some of its steps."""
    return has_prefixes(info, case) and 0 < info.continues < length(info, case)


def has_step(info: OpInfo, case: Case) -> bool:
    """Whether a case can be called step by step."""
    return can_be_cut(info, case) and info.continues == 1


def training(
    info: OpInfo, case: Case, device: str, seed: int, framework: Framework
) -> tuple[Arrays, dict[str, Any], Arrays]:
    """The inputs of a case, its options, if there are states with `return_final_state`, and the outputs of the op."""
    inputs, chosen = draw(case, device, seed), options(case)
    if STATE in info.arguments:
        chosen |= {"return_final_state": True}
    with poisoned():
        results = outputs(called(info, framework), leaves(inputs), chosen)
    return inputs, chosen, {output_name(i): tensor.detach() for i, tensor in enumerate(results)}


def generated(function: Function, inputs: Mapping[str, Tensor], chosen: Mapping[str, Any]) -> Arrays:
    """Results by name, without gradients."""
    with poisoned(), torch.no_grad():
        return {output_name(i): tensor for i, tensor in enumerate(outputs(function, inputs, chosen))}


def called(info: OpInfo, framework: Framework) -> Function:
    """The op in a framework, as a function of PyTorch tensors."""
    return info.torch if framework == "torch" else called_in_jax(info, info.jax())


def called_in_jax(info: OpInfo, function: Callable[..., Any]) -> Function:
    """A jitted JAX function as a function of PyTorch tensors."""
    from retrograd.testing import jax_call

    def call(*first: Tensor, **rest: Any) -> tuple[Tensor, ...]:
        arguments = dict(zip(info.arguments, first, strict=False)) | rest
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        return jax_call.forward(function, tensors, {name: arguments[name] for name in arguments if name not in tensors})

    return call


def by_update(info: OpInfo, case: Case, update: Function) -> Function:
    """The single-step function as a function of a sequence of one step."""

    def one_step(first: Tensor, *, return_final_state: bool, reverse: bool = False, **rest: Any) -> tuple[Any, Any]:
        arguments = {info.arguments[0]: first} | rest
        axes = {name: time_axis(info, case, name) for name in arguments}
        step = {
            name: value if (axis := axes[name]) is None else value.squeeze(axis) for name, value in arguments.items()
        }
        y, state = update(state=step.pop(STATE), **step)
        return y.unsqueeze(axes[info.arguments[0]]), state

    return one_step


def where(info: OpInfo, case: Case, framework: Framework, part: str) -> str:
    """The beginning of an error message."""
    return f"{info.name}, {case.name}, {framework}: {part}"
