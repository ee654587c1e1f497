"""The contract detects deliberately wrong numbers.

Broken ops run on the portable path; `tests/interpreter/test_kernel_mutations.py` breaks the kernels themselves.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from broken import SEED, ReadsGradientAsDense, as_if_dense, breaks, info, scaled_gradient
from checks import contract
from torch import Tensor

from retrograd import rms_norm
from retrograd.ops.rms_norm.info import INFO
from retrograd.testing.verify import verify


def test_a_wrong_sign_in_the_backward_pass() -> None:
    negated = scaled_gradient(-1.0)
    breaks(contract.check_errors, lambda x, weight: rms_norm(negated(x), weight), "plain")


def test_a_parameter_gradient_that_is_half_a_percent_off_in_float32() -> None:
    off = scaled_gradient(1.005)
    breaks(contract.check_errors, lambda x, weight, **o: rms_norm(x, off(weight), **o), "plain_fp32")


def test_an_eps_that_is_not_added() -> None:
    breaks(contract.check_errors, lambda x, weight, **o: rms_norm(x, weight, **o, eps=1e-30), "plain_fp32")
    breaks(contract.check_errors, lambda x, weight, **o: rms_norm(x, weight, **o | {"eps": 1e-30}), "one_column")


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
    """Sums whose order changes from run to run, as with atomic additions: the last bit sometimes differs."""
    y = rms_norm(x, weight)
    return torch.where(torch.rand(y.shape) < 0.02, torch.nextafter(y, torch.full_like(y, torch.inf)), y)


def test_sums_whose_order_changes_from_run_to_run() -> None:
    breaks(contract.check_repeats, noisy, "plain_fp32")
    checks = verify(info(noisy), INFO.case("plain_fp32"), "torch", "cpu", SEED)
    assert [check.repeats for check in checks if check.quantity == "y"] == [False]
    assert not all(check.passed for check in checks)


def test_sums_whose_order_depends_on_the_number_of_rows() -> None:
    def split(x: Tensor, weight: Tensor) -> Tensor:
        rows, parts = x.flatten(0, -2), min(x.flatten(0, -2).shape[0], 16)
        square = sum((part.square().sum(-1) for part in rows.chunk(parts, -1)), torch.zeros(()))
        return (rows * (square / x.shape[-1] + 1e-6).rsqrt()[:, None]).view_as(x) * weight

    breaks(contract.check_batch_invariance, split, "plain_fp32")


def test_sums_whose_order_depends_on_the_layout_of_the_batch() -> None:
    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    breaks(contract.check_batch_invariance, plain, "plain_fp32", layout="transposed")


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
        y: Tensor = ReadsGradientAsDense.apply(rms_norm(x, weight))
        return y

    breaks(contract.check_layout, dense, "plain_fp32", layout=layout)
