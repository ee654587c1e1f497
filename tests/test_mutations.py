"""A test that cannot fail proves nothing: each promise is broken here on purpose, and its check has to notice.

Broken ops run on the portable path; `tests/interpreter/test_kernel_mutations.py` breaks the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd import rms_norm
from retrograd.core.room import Room
from retrograd.ops.rms_norm import reference
from retrograd.ops.rms_norm.room import ROOM
from retrograd.testing import contract, integration
from retrograd.testing.verify import verify

SEED = 7
Function = Callable[..., Any]


def room(function: Function) -> Room:
    """The room with another function in it."""
    return replace(ROOM, torch=function)


def breaks(check: Callable[..., None], function: Function, case: str, **arguments: Any) -> None:
    """Assert that the op passes a check, and that the broken one does not."""
    arguments |= {"device": "cpu", "seed": SEED}
    check(ROOM, ROOM.case(case), **arguments)
    with pytest.raises(AssertionError):
        check(room(function), ROOM.case(case), **arguments)


def scaled_gradient(factor: float) -> Function:
    """An identity whose gradient is scaled."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return dy * factor

    function: Function = Scaled.apply
    return function


def as_if_dense(tensor: Tensor) -> Tensor:
    """What a kernel reads that takes every array for dense."""
    shape = tensor.shape
    return tensor.as_strided(shape, torch.empty(shape, device="meta").stride(), tensor.storage_offset())


class ReadsGradientAsDense(torch.autograd.Function):
    """An identity that takes the gradient coming in for dense."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return as_if_dense(dy)


# Numbers


def test_a_wrong_sign_in_the_backward_pass() -> None:
    negated = scaled_gradient(-1.0)
    breaks(contract.check_errors, lambda x, weight: rms_norm(negated(x), weight), "plain")


def test_a_parameter_gradient_that_is_half_a_percent_off_in_float32() -> None:
    off = scaled_gradient(1.005)
    breaks(contract.check_errors, lambda x, weight, **o: rms_norm(x, off(weight), **o), "plain_fp32")


def test_an_eps_that_is_not_added() -> None:
    breaks(contract.check_errors, lambda x, weight, **o: rms_norm(x, weight, **o, eps=1e-30), "plain_fp32")
    breaks(contract.check_errors, lambda x, weight, **o: rms_norm(x, weight, **o, eps=1e-30), "one_column")


def test_an_offset_of_the_weight_that_is_missing() -> None:
    breaks(contract.check_errors, lambda x, weight, weight_offset, **o: rms_norm(x, weight, **o), "gemma")


def test_a_mean_over_one_column_too_many() -> None:
    def padded(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight) * (1 + 1 / x.shape[-1]) ** 0.5

    breaks(contract.check_errors, padded, "odd_columns")


def test_one_wrong_element_among_many() -> None:
    def wrong(x: Tensor, weight: Tensor) -> Tensor:
        y = rms_norm(x, weight)
        return torch.where(torch.arange(y.numel()).view_as(y) == y.numel() // 2, y + 0.25, y)

    breaks(contract.check_errors, wrong, "many_rows")


def test_a_gradient_of_the_sum_that_is_dropped() -> None:
    drop = scaled_gradient(0.0)

    def dropped(x: Tensor, weight: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
        y, s = rms_norm(x, weight, **others)
        return y, drop(s)

    breaks(contract.check_errors, dropped, "prenorm")


def test_a_gradient_that_ignores_the_gate() -> None:
    drop = scaled_gradient(0.0)
    breaks(contract.check_errors, lambda x, weight, gate: rms_norm(x, weight, gate=drop(gate)), "gate_before")


def test_an_element_that_is_never_written() -> None:
    def unwritten(x: Tensor, weight: Tensor) -> Tensor:
        right = rms_norm(x, weight)
        y = torch.empty_like(right)
        y[..., :-1] = right[..., :-1]
        return y

    breaks(contract.check_errors, unwritten, "plain")


def test_an_output_in_another_dtype() -> None:
    breaks(contract.check_errors, lambda x, weight: rms_norm(x, weight, out_dtype=torch.float32), "plain")


def test_a_parameter_gradient_of_nothing_that_is_not_zero() -> None:
    def divided(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, scaled_gradient(float("nan"))(weight))

    breaks(contract.check_errors, divided, "empty_rows")


def noisy(x: Tensor, weight: Tensor) -> Tensor:
    """Sums whose order changes from run to run, as atomic additions leave them: now and then another last bit."""
    y = rms_norm(x, weight)
    return torch.where(torch.rand(y.shape) < 0.02, torch.nextafter(y, torch.full_like(y, torch.inf)), y)


def test_sums_whose_order_changes_from_run_to_run() -> None:
    breaks(contract.check_repeats, noisy, "plain_fp32")
    checks = verify(room(noisy), ROOM.case("plain_fp32"), "torch", "cpu", SEED)
    assert [check.repeats for check in checks if check.quantity == "y"] == [False]
    assert not all(check.passed for check in checks)


def test_sums_whose_order_depends_on_the_number_of_rows() -> None:
    def split(x: Tensor, weight: Tensor) -> Tensor:
        rows, parts = x.flatten(0, -2), min(x.flatten(0, -2).shape[0], 16)
        square = sum((part.square().sum(-1) for part in rows.chunk(parts, -1)), torch.zeros(()))
        return (rows * (square / x.shape[-1] + 1e-6).rsqrt()[:, None]).view_as(x) * weight

    breaks(contract.check_batch_invariance, split, "plain_fp32")


def test_a_row_that_sees_its_neighbours() -> None:
    def leaks(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight) + 1e-6 * x.mean(0, keepdim=True)

    breaks(contract.check_batch_invariance, leaks, "plain_fp32")


@pytest.mark.parametrize("layout", ["transposed", "permuted", "sliced", "every_other_row", "every_third_column"])
def test_strides_that_are_ignored(layout: str) -> None:
    breaks(contract.check_layout, lambda x, weight: rms_norm(as_if_dense(x), weight), "plain_fp32", layout=layout)


@pytest.mark.parametrize("layout", ["transposed", "permuted", "sliced", "every_other_row", "every_third_column"])
def test_strides_of_gradients_that_are_ignored(layout: str) -> None:
    def dense(x: Tensor, weight: Tensor) -> Tensor:
        made: Tensor = ReadsGradientAsDense.apply(rms_norm(x, weight))
        return made

    breaks(contract.check_layout, dense, "plain_fp32", layout=layout)


# PyTorch's machinery


def test_an_operator_that_computes_something_else() -> None:
    def other(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, eps=2e-6 if torch._C._len_torch_dispatch_stack() else 1e-6)

    breaks(integration.check_operator, other, "plain_fp32")


def test_a_compiled_function_that_computes_something_else() -> None:
    def other(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, eps=2e-6 if torch.compiler.is_compiling() else 1e-6)

    breaks(integration.check_compile, other, "plain_fp32", backend="eager", dynamic=False)


def test_a_graph_break() -> None:
    def broken(x: Tensor, weight: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return rms_norm(x, weight)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        integration.check_compile(room(broken), ROOM.case("plain_fp32"), "cpu", SEED, "eager", False)


def test_a_compilation_for_every_batch() -> None:
    def specialised(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight) if x.shape[0] == 9 else rms_norm(x, weight).clone()

    breaks(integration.check_compile, specialised, "odd_columns", backend="eager", dynamic=True)


def test_autocast_that_changes_the_arithmetic() -> None:
    def cast(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x @ torch.eye(x.shape[-1]), weight).float()

    breaks(integration.check_autocast, cast, "plain_fp32")


def test_a_forward_pass_that_cannot_be_repeated() -> None:
    calls = iter(range(1000))

    def counts(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight) * float(1 + next(calls))

    breaks(integration.check_checkpoint, counts, "plain_fp32")


def test_a_gradient_that_depends_on_which_others_are_asked_for() -> None:
    def depends(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight if x.requires_grad else scaled_gradient(1.001)(weight))

    breaks(integration.check_subsets, depends, "plain_fp32")


def test_an_unread_output_that_still_sends_a_gradient() -> None:
    def sends(x: Tensor, weight: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
        class Sends(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
                ctx.set_materialize_grads(False)
                return y.view_as(y), s.view_as(s)

            @staticmethod
            def backward(ctx: Any, dy: Tensor | None, ds: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
                return dy, torch.ones_like(dy) if ds is None and dy is not None else ds

        made: tuple[Tensor, Tensor] = Sends.apply(*rms_norm(x, weight, **others))
        return made

    breaks(integration.check_outputs_alone, sends, "prenorm")


def test_a_second_derivative_that_is_silently_zero() -> None:
    class Detached(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return rms_norm(x, weight).detach()

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            with torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
                found = torch.autograd.grad(rms_norm(*leaves), leaves, dy.detach())
            return tuple(gradient.detach() for gradient in found)

    breaks(integration.check_double_backward, lambda x, weight: Detached.apply(x, weight), "plain_fp32")


def test_a_second_derivative_that_is_not_refused() -> None:
    breaks(integration.check_double_backward, reference.rms_norm, "plain_fp32")
