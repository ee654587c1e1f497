"""The contract detects faults in recurrent ops, in complex numbers and in integer arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from broken import SEED, as_if_dense, scaled_gradient
from checks import contract, generation, integration, programs
from checks.layouts import LAYOUTS, laid_out, layouts_of
from checks.parts import batch_size, is_packed
from torch import Tensor
from toy_op import CASES, TOY, D, Scan, broken, update

from retrograd.core.arch import SUPPORTED
from retrograd.opinfo.info import OpInfo

PACKED = [case for case in CASES if is_packed(case)]
in_each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def breaks(check: Callable[..., None], info: OpInfo, case: str, **arguments: Any) -> None:
    """Assert that the toy op passes a check and that the broken op fails it."""
    arguments |= {"device": "cpu", "seed": SEED}
    check(TOY, TOY.case(case), **arguments)
    with pytest.raises(AssertionError):
        check(info, info.case(case), **arguments)


@in_each_case
def test_a_sound_op_passes(case: Any, seed: int) -> None:
    for check in (
        contract.check_errors,
        contract.check_repeats,
        contract.check_batch_invariance,
        contract.check_packed,
        contract.check_outside,
        contract.check_state_passing,
        integration.check_subsets,
        integration.check_outputs_alone,
        integration.check_checkpoint,
    ):
        check(TOY, case, "cpu", seed)
    for layout in layouts_of(TOY, case):
        contract.check_layout(TOY, case, layout, "cpu", seed)
    for check, applies in (
        (generation.check_prefix, generation.has_prefixes),
        (generation.check_continue, generation.can_be_cut),
        (generation.check_step, generation.has_step),
    ):
        if applies(TOY, case):
            check(TOY, case, "cpu", seed)


def test_a_state_that_leaks_into_the_next_packed_sequence() -> None:
    kept: list[Tensor] = []

    def leaks(last: Tensor, before: Tensor) -> Tensor:
        kept.append(last)
        return last

    def enters(states: Tensor, sequence: int) -> Tensor:
        return states[sequence : sequence + 1] + (1e-6 * kept[-1] if sequence else 0.0)

    breaks(contract.check_packed, broken(leave=leaks, enter=enters), "packed")


def test_a_packed_sequence_that_starts_from_the_first_state() -> None:
    breaks(contract.check_packed, broken(enter=lambda states, sequence: states[:1]), "packed")


def test_a_state_that_is_multiplied_by_zero_in_the_next_packed_sequence() -> None:
    def enters(states: Tensor, sequence: int) -> Tensor:
        return states[sequence : sequence + 1] + 0.0 * states.sum(0)

    breaks(contract.check_packed, broken(enter=enters), "packed")


def by_place(a: Tensor, h: Tensor, wx: Tensor, place: int) -> Tensor:
    """Every fourth step, counted from the start of the array, is rounded once instead of twice."""
    once = (a.double() * h.double() + wx.double()).float()
    return once if place % 4 == 3 else a * h + wx


def test_arithmetic_that_depends_on_where_a_packed_sequence_starts() -> None:
    breaks(contract.check_packed, broken(step=by_place), "packed")
    contract.check_batch_invariance(broken(step=by_place), TOY.case("plain"), "cpu", SEED)


def test_steps_outside_of_every_packed_sequence_that_are_not_zero() -> None:
    breaks(contract.check_outside, broken(outside=1e-3), "packed_gaps")
    breaks(contract.check_outside, broken(outside=float("nan")), "packed_gaps")
    breaks(contract.check_outside, broken(outside=-0.0), "packed_gaps")


def test_a_step_outside_of_every_packed_sequence_that_is_multiplied_by_zero() -> None:
    def masked(x: Tensor, a: Tensor, w: Tensor, **others: Any) -> Any:
        times, bounds = torch.arange(x.shape[1])[:, None], others["cu_seqlens"]
        inside = (times >= bounds[0]) & (times < bounds[-1])
        return TOY.torch(x, a, w + 0.0 * (x * inside).sum((0, 1)), **others)

    breaks(contract.check_outside, replace(TOY, torch=masked), "packed_gaps")


@pytest.mark.parametrize("case", ["state", "reverse", "complex", "packed", "packed_gaps"])
def test_a_final_state_that_is_one_step_early(case: str) -> None:
    breaks(contract.check_errors, broken(leave=lambda last, before: before), case)


@pytest.mark.parametrize("case", ["state", "reverse", "complex"])
def test_a_final_state_from_which_the_rest_cannot_go_on(case: str) -> None:
    breaks(contract.check_state_passing, broken(leave=lambda last, before: before), case)


@pytest.mark.parametrize("case", ["state", "reverse", "complex", "one_step"])
def test_a_gradient_that_does_not_pass_through_the_final_state(case: str) -> None:
    drop = scaled_gradient(0.0)
    breaks(contract.check_state_passing, broken(leave=lambda last, before: drop(last)), case)


def test_steps_that_depend_on_how_many_follow_them() -> None:
    def counts_from_the_end(x: Tensor, a: Tensor, w: Tensor, **others: Any) -> Any:
        return Scan(step=lambda a, h, wx, place: by_place(a, h, wx, x.shape[1] - place))(x, a, w, **others)

    breaks(generation.check_prefix, replace(TOY, torch=counts_from_the_end), "plain")


@pytest.mark.parametrize("case", ["plain", "reverse", "complex"])
def test_a_final_state_that_is_off_in_its_last_bits(case: str) -> None:
    breaks(generation.check_continue, broken(leave=lambda last, before: last * (1 + 2**-20)), case)


def test_a_sequence_that_goes_on_to_the_bit_at_every_fourth_step_alone() -> None:
    info = broken(step=by_place)
    generation.check_continue(replace(info, continues=4), TOY.case("plain"), "cpu", SEED)
    generation.check_prefix(info, TOY.case("plain"), "cpu", SEED)
    breaks(generation.check_continue, info, "plain")
    breaks(generation.check_step, info, "plain")


def test_a_function_for_a_step_that_rounds_once_more_or_less() -> None:
    def once(state: Tensor, x: Tensor, a: Tensor, w: Tensor) -> Any:
        return update(state, x, a, w, step=lambda a, h, wx, place: by_place(a, h, wx, 3))

    for case in ("plain", "state"):
        breaks(generation.check_step, replace(TOY, update=once), case)


def test_sums_that_change_in_a_large_batch() -> None:
    def by_batch(a: Tensor, h: Tensor, wx: Tensor, place: int) -> Tensor:
        return by_place(a, h, wx, 3 if wx.shape[0] > 3 else 0)

    breaks(contract.check_batch_invariance, broken(step=by_batch), "plain")
    breaks(contract.check_batch_invariance, broken(step=by_batch), "shared_decay")


def test_a_row_that_sees_its_neighbours_beside_a_shared_decay() -> None:
    def leaks(a: Tensor, h: Tensor, wx: Tensor, place: int) -> Tensor:
        return a * h + wx + 1e-6 * wx.mean(0, keepdim=True)

    breaks(contract.check_batch_invariance, broken(step=leaks), "shared_decay")


class Unconjugated(torch.autograd.Function):
    """A product whose gradients lack their conjugation."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(a, h)
        return a * h

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, h = ctx.saved_tensors
        return dy * h, dy * a


def test_a_complex_gradient_without_its_conjugation() -> None:
    info = broken(step=lambda a, h, wx, place: Unconjugated.apply(a, h) + wx)
    breaks(contract.check_errors, info, "complex")
    contract.check_errors(info, TOY.case("state"), "cpu", SEED)


def test_an_imaginary_part_that_is_a_little_off() -> None:
    def off(a: Tensor, h: Tensor, wx: Tensor, place: int) -> Tensor:
        value = a * h + wx
        return torch.complex(value.real, value.imag * (1 + 1e-5))

    breaks(contract.check_errors, broken(step=off), "complex")


@pytest.mark.parametrize("layout", ["every_other_row", "every_third_column"])
def test_strides_of_integers_that_are_ignored(layout: str) -> None:
    def dense(bounds: Tensor) -> Tensor:
        return as_if_dense(bounds).clamp(max=12).sort().values  # the memory between elements holds the largest integer

    breaks(contract.check_layout, broken(bounds=dense), "packed", layout=layout)


def test_a_conjugation_put_off_that_is_ignored() -> None:
    def reads_memory(a: Tensor, h: Tensor, wx: Tensor, place: int) -> Tensor:
        return (a.conj() if a.is_conj() else a) * h + wx

    breaks(contract.check_layout, broken(step=reads_memory), "complex", layout="conjugated")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_layout_changes_the_values_of_integers(layout: str) -> None:
    bounds = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
    assert laid_out(layout, {"cu_seqlens": bounds})["cu_seqlens"].equal(bounds)


def test_two_structures_that_differ_in_their_last_bits() -> None:
    def split_at(place: int) -> Callable[[OpInfo], OpInfo]:
        return lambda info: replace(info, torch=Scan(step=lambda a, h, wx, t: by_place(a, h, wx, place)))

    def whole(info: OpInfo) -> OpInfo:
        return info

    contract.check_structures(replace(TOY, structures={"whole": whole, "again": whole}), TOY.case("plain"), "cpu", SEED)
    info = replace(TOY, structures={"whole": split_at(0), "split": split_at(3)})
    with pytest.raises(AssertionError, match="split and whole"):
        contract.check_structures(info, TOY.case("plain"), "cpu", SEED)


def test_a_case_without_kernels_is_left_to_the_portable_path() -> None:
    arch = SUPPORTED["sm_90"]
    for case in CASES:
        assert list(programs.launches(TOY, case, arch)) == []
        programs.check_order(TOY, case, arch)
        programs.check_same_binaries(TOY, case, arch, 2, 64)


def test_a_case_of_other_rows_has_as_many_sequences_and_keeps_what_is_shared() -> None:
    found = {name: tensor.shape for name, tensor in programs.resized(TOY, TOY.case("packed"), 5).inputs.items()}
    assert found == {"x": (1, 12, D), "a": (1, 12, D), "w": (D,), "initial_state": (5, D), "cu_seqlens": (6,)}
    found = {name: tensor.shape for name, tensor in programs.resized(TOY, TOY.case("shared_decay"), 5).inputs.items()}
    assert found == {"x": (5, 9, D), "a": (1, 9, D), "w": (D,)}
    assert batch_size(TOY, TOY.case("packed")) == 0
    assert batch_size(TOY, TOY.case("shared_decay")) == 3


SLOW_CASES = [pytest.param(name, marks=pytest.mark.slow) for name in ("state", "shared_decay")]


@pytest.mark.parametrize("case", ["complex", "packed", *SLOW_CASES])
def test_jax_is_judged_by_the_same_reference(case: str, seed: int) -> None:
    pytest.importorskip("jax")
    contract.check_errors(TOY, TOY.case(case), "cpu", seed, "jax")


def test_a_complex_gradient_of_jax_in_the_other_convention() -> None:
    jax = pytest.importorskip("jax")

    @jax.custom_vjp
    def conjugates(x: Any) -> Any:
        return x

    conjugates.defvjp(lambda x: (x, None), lambda _, dy: (dy.conj(),))
    sound = TOY.jax()
    info = replace(TOY, jax=lambda: lambda x, **arguments: sound(conjugates(x), **arguments))
    with pytest.raises(AssertionError):
        contract.check_errors(info, TOY.case("complex"), "cpu", SEED, "jax")
    contract.check_errors(info, TOY.case("state"), "cpu", SEED, "jax")
