"""PyTorch's flash attention on retrograd's kernels, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention as hooks
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from retrograd.compat import sdpa

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(hooks, "register_flash_attention_impl"), reason="this PyTorch has no hook for other attentions"
    ),
]
BATCH, HEADS, GROUPS, STEPS, SIZE = 2, 8, 2, 300, 64


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    sdpa.install()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield
    sdpa.uninstall()


def drawn(seed: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    made = (torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in made]


def inputs_of(seed: int, dtype: torch.dtype, groups: int = HEADS) -> list[Tensor]:
    keys = (BATCH, groups, STEPS, SIZE)
    return drawn(seed, dtype, (BATCH, HEADS, STEPS, SIZE), keys, keys)


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).to(out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [HEADS, GROUPS])
def test_results_and_gradients_are_within_rounding(dtype: torch.dtype, causal: bool, groups: int, seed: int) -> None:
    inputs = inputs_of(seed, dtype, groups)
    options: dict[str, Any] = {"is_causal": causal, "enable_gqa": groups != HEADS}
    q, k, v = inputs
    found = with_gradients(scaled_dot_product_attention(q, k, v, **options), inputs)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    with sdpa_kernel(SDPBackend.MATH):
        expected = with_gradients(scaled_dot_product_attention(exact[0], exact[1], exact[2], **options), exact)
    for ours, theirs in zip(found, expected, strict=True):
        # Probabilities and results are rounded to 16 bits, and so are the gradients at the scores.
        assert (ours.double() - theirs).norm() <= 4 * torch.finfo(dtype).eps * theirs.norm()
    assert all(map(torch.equal, found, with_gradients(scaled_dot_product_attention(q, k, v, **options), inputs)))


def test_the_kernels_are_ours(seed: int) -> None:
    q, k, v = inputs = inputs_of(seed, torch.bfloat16)
    with_gradients(scaled_dot_product_attention(q, k, v), inputs)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        with_gradients(scaled_dot_product_attention(q, k, v), inputs)
    assert not [event.name for event in recorded.events() if "flash_fwd" in event.name or "flash_bwd" in event.name]


def test_it_compiles(seed: int) -> None:
    q, k, v = inputs = inputs_of(seed, torch.bfloat16)
    compiled = torch.compile(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), fullgraph=True)
    expected = with_gradients(scaled_dot_product_attention(q, k, v, is_causal=True), inputs)
    assert all(map(torch.equal, with_gradients(compiled(q, k, v), inputs), expected))


def test_packed_sequences_have_what_each_has_alone(seed: int) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this PyTorch has no varlen_attn")
    shape = (STEPS, HEADS, SIZE)
    q, k, v = inputs = drawn(seed, torch.bfloat16, shape, shape, shape)
    ends = torch.tensor([0, 100, STEPS], dtype=torch.int32, device="cuda")
    out = varlen.varlen_attn(q, k, v, ends, ends, 200, 200)
    for part in (slice(100), slice(100, None)):
        q_, k_, v_ = (array[part].transpose(0, 1)[None] for array in inputs)
        alone = scaled_dot_product_attention(q_, k_, v_)[0].transpose(0, 1)
        torch.testing.assert_close(out[part], alone, rtol=0, atol=2e-2)
    assert all(gradient.isfinite().all() for gradient in with_gradients(out, inputs))
