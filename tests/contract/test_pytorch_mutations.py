"""The checks of the PyTorch integration detect deliberate faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from broken import SEED, breaks, info, scaled_gradient
from checks import derivatives, integration
from torch import Tensor

from retrograd import causal_conv1d, rms_norm
from retrograd.core.torch.arguments import in_batches
from retrograd.ops.causal_conv1d.info import INFO as CONVOLUTION
from retrograd.ops.rms_norm import reference
from retrograd.ops.rms_norm.info import INFO


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
        integration.check_compile(info(broken), INFO.case("plain_fp32"), "cpu", SEED, "eager", False)


def test_a_compilation_for_every_batch() -> None:
    def specialised(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight) if x.shape[0] == 9 else rms_norm(x, weight).clone()

    breaks(integration.check_compile, specialised, "odd_columns", backend="eager", dynamic=True)


def test_autocast_that_changes_the_arithmetic() -> None:
    def cast(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x @ torch.eye(x.shape[-1]), weight).float()

    breaks(integration.check_autocast, cast, "plain_fp32")


def test_a_call_that_autocast_does_not_reach() -> None:
    def apart(*inputs: Any, **others: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return causal_conv1d(*inputs, **others)

    case = CONVOLUTION.case("fp32")
    integration.check_autocast(CONVOLUTION, case, "cpu", SEED)
    with pytest.raises(AssertionError):
        integration.check_autocast(replace(CONVOLUTION, torch=apart), case, "cpu", SEED)


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

        results: tuple[Tensor, Tensor] = Sends.apply(*rms_norm(x, weight, **others))
        return results

    breaks(integration.check_outputs_alone, sends, "prenorm")


class Detached(torch.autograd.Function):
    """rms_norm with a gradient that is detached from the graph."""

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


def test_a_second_derivative_that_is_silently_zero() -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        derivatives.check_road(info(Detached.apply), INFO.case("plain_fp32"), "by_name", "cpu", SEED)


@pytest.mark.parametrize("road", list(derivatives.ROADS))
def test_a_derivative_that_is_another(road: str) -> None:
    def other(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, eps=0.5)

    breaks(derivatives.check_road, other, "plain_fp32", road=road)


def test_gradients_in_batches_that_are_others() -> None:
    def other(x: Tensor, weight: Tensor) -> Tensor:
        return Doubled.apply(rms_norm(x, weight))

    breaks(derivatives.check_batched_gradients, other, "plain_fp32")


class Doubled(torch.autograd.Function):
    """An identity whose gradient is doubled if the incoming gradient is batched."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return 2 * dy if in_batches([dy]) else dy


def test_a_second_derivative_that_is_not_refused() -> None:
    breaks(derivatives.check_refused_under_dispatch, reference.rms_norm, "plain_fp32")
