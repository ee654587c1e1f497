"""rms_norm at its edge cases and compared with PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import rms_norm as torch_rms_norm

from retrograd import rms_norm

X = torch.zeros(2, 4, 64)
W = torch.ones(64)


def test_it_agrees_with_pytorch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(7, 96, generator=generator), torch.randn(96, generator=generator)
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-5), torch_rms_norm(x, (96,), weight, 1e-5))


def test_gemma_is_a_weight_around_zero() -> None:
    x, weight = torch.randn(5, 32), torch.randn(32)
    assert torch.equal(rms_norm(x, weight, weight_offset=1.0), rms_norm(x, weight + 1.0))


def test_the_sum_returned_is_what_was_normalised() -> None:
    x, residual = torch.randn(2, 5, 32).bfloat16()
    y, s = rms_norm(x, residual=residual, prenorm=True)
    assert torch.equal(s, x + residual)
    assert torch.equal(y, rms_norm(s))


def test_without_a_residual_the_stream_starts_as_a_copy_of_x_that_may_be_written_into() -> None:
    x = torch.randn(5, 32, requires_grad=True)
    before = x.detach().clone()
    y, stream = rms_norm(x, prenorm=True)
    assert torch.equal(stream, x)
    stream += y
    assert torch.equal(x, before)
    (gradient,) = torch.autograd.grad(stream.sum(), x)
    (expected,) = torch.autograd.grad((x + rms_norm(x)).sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_a_row_of_zeros_gives_zeros_and_finite_gradients() -> None:
    x = torch.zeros(3, 16, requires_grad=True)
    y = rms_norm(x, torch.ones(16))
    y.sum().backward()
    assert torch.equal(y, torch.zeros(3, 16))
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_squares_that_float16_cannot_hold_do_not_overflow() -> None:
    x = torch.full((2, 64), 60000.0, dtype=torch.float16)
    assert torch.equal(rms_norm(x), torch.ones(2, 64, dtype=torch.float16))


def test_a_nan_stays_in_its_row() -> None:
    x = torch.randn(3, 16)
    clean = rms_norm(x)
    x[1, 4] = torch.nan
    y = rms_norm(x)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], clean[::2])


def test_changing_the_stream_in_place_is_noticed_in_the_backward_pass() -> None:
    x, residual = (torch.randn(4, 16, requires_grad=True) for _ in range(2))
    y, stream = rms_norm(x, residual=residual, prenorm=True)
    with torch.no_grad():
        stream += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_it_runs_on_the_meta_device_and_in_inference_mode() -> None:
    assert rms_norm(X.to("meta"), W.to("meta")).shape == X.shape
    with torch.inference_mode():
        assert rms_norm(X, W).is_inference()


def test_nothing_to_differentiate_leaves_no_graph() -> None:
    assert not rms_norm(X, W).requires_grad
