"""PyTorch's flash attention on `retrograd.attention`: its operators, called by PyTorch's own autograd, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention as hooks
from torch import Tensor
from torch.library import Library
from torch.nn.functional import scaled_dot_product_attention

from retrograd.compat import sdpa

BATCH, HEADS, GROUPS, STEPS, SIZE = 2, 4, 2, 11, 8
ENDS = torch.tensor([0, 4, 4, STEPS], dtype=torch.int32)


@pytest.fixture
def on_a_cpu() -> Iterator[None]:
    """The operators of the flash backend, which PyTorch has for GPUs, for CPUs, too."""
    library = sdpa.register(Library("aten", "IMPL"), "CPU")
    yield
    library._destroy()


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def three(seed: int, *shape: int) -> list[Tensor]:
    return [drawn(seed + number, *shape) for number in range(3)]


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "scale": 0.2}])
@pytest.mark.usefixtures("on_a_cpu")
def test_results_and_gradients_are_those_of_pytorch(options: dict[str, Any], seed: int) -> None:
    inputs = three(seed, BATCH, HEADS, STEPS, SIZE)
    out = torch.ops.aten._scaled_dot_product_flash_attention(*inputs, **options)[0]
    expected = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], **options)
    torch.testing.assert_close(with_gradients(out, inputs), with_gradients(expected, inputs))


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.usefixtures("on_a_cpu")
def test_results_and_gradients_are_laid_out_as_the_queries_are(axes: tuple[int, ...], seed: int) -> None:
    shape = (BATCH, HEADS, STEPS, SIZE)
    q, k, v = (drawn(seed, *(shape[axis] for axis in axes)).permute(axes).detach().requires_grad_() for _ in range(3))
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]
    assert out.shape == shape
    assert all(found.stride() == q.stride() for found in with_gradients(out, [q, k, v]))


@pytest.mark.parametrize("window", [(None, None), (2, 0), (-1, 3)])
@pytest.mark.usefixtures("on_a_cpu")
def test_packed_sequences_are_apart_and_windows_are_kept(window: tuple[int | None, int | None], seed: int) -> None:
    q, k, v = inputs = three(seed, STEPS, HEADS, SIZE)
    sides = dict(zip(("window_size_left", "window_size_right"), window, strict=True))
    forward = torch.ops.aten._flash_attention_forward
    out, lse, *_ = forward(q, k, v, ENDS, ENDS, 7, 7, 0.0, False, False, **sides)
    assert lse.shape == (HEADS, STEPS)
    place = torch.arange(STEPS)
    sequence = torch.bucketize(place, ENDS, right=True)
    apart = place - place[:, None]
    left, right = (STEPS if side in (None, -1) else side for side in window)
    sees = (sequence == sequence[:, None]) & (apart >= -left) & (apart <= right)
    rows = (array.transpose(0, 1)[None] for array in inputs)
    expected = scaled_dot_product_attention(next(rows), next(rows), next(rows), sees)[0].transpose(0, 1)
    torch.testing.assert_close(with_gradients(out, inputs), with_gradients(expected, inputs))


@pytest.mark.usefixtures("on_a_cpu")
def test_dropout_drops_in_the_backward_pass_what_it_drops_in_the_forward_pass(seed: int) -> None:
    q, k, v = three(seed, BATCH, HEADS, STEPS, SIZE)
    v = torch.eye(STEPS, dtype=torch.float64).expand(BATCH, HEADS, -1, -1).clone().requires_grad_()  # out is p
    torch.manual_seed(seed)
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.5, False)[0]
    assert (out == 0).any()
    (dv,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close(dv, out.sum(-2)[..., None].expand_as(dv))


@pytest.mark.usefixtures("on_a_cpu")
def test_what_cannot_be_honoured_is_refused_by_name(seed: int) -> None:
    q, k, v = three(seed, STEPS, HEADS, SIZE)
    with pytest.raises(NotImplementedError, match="seqused_k is not supported"):
        sdpa.forward(q, k, v, ENDS, ENDS, 7, 7, 0.0, False, False, seqused_k=ENDS[1:])
    with pytest.raises(NotImplementedError, match="block_table is not supported"):
        sdpa.forward(q, k, v, ENDS, ENDS, 7, 7, 0.0, False, False, block_table=ENDS)


def test_install_is_undone() -> None:
    before = hooks.current_flash_attention_impl()
    sdpa.install()
    assert hooks.current_flash_attention_impl() == "retrograd"
    sdpa.uninstall()
    assert hooks.current_flash_attention_impl() == before
    sdpa.uninstall()


def test_a_pytorch_without_the_hook_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(hooks, "register_flash_attention_impl")
    with pytest.raises(
        RuntimeError, match=r"^retrograd.compat.sdpa: PyTorch .* has no hook for other flash attentions"
    ):
        sdpa.install()
