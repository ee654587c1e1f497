"""attention where 32-bit offsets overflow, with thousands of tiny sequences, and on a GPU that others keep busy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from retrograd import attention
from retrograd.testing.compare import assert_same_bits

pytestmark = pytest.mark.gpu

H, D = 128, 128
T = 2**31 // (H * D) + 4096  # of one row: offsets of the last steps take more than 32 bits
LAST = 4096  # steps, from a multiple of every tile on
WINDOW = 63


def drawn(seed: int, steps: int, heads: int, size: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    tensor = torch.empty(1, steps, heads, size, dtype=torch.bfloat16, device="cuda")
    for part in tensor.split(2**12, 1):
        part.copy_(torch.randn(part.shape, generator=generator, device="cuda"))
    return tensor


def results(inputs: list[Tensor], dout: Tensor, **options: Any) -> dict[str, Tensor]:
    """out, dq, dk and dv."""
    q, k, v = (t.detach().requires_grad_() for t in inputs)
    out = attention(q, k, v, causal=True, **options)
    assert isinstance(out, Tensor)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    return {"out": out.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def steps(found: dict[str, Tensor], start: int, end: int | None) -> dict[str, Tensor]:
    return {name: tensor[:, start:end].contiguous() for name, tensor in found.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("large_arrays")
def test_steps_farther_than_32_bits_reach_have_the_bits_of_a_short_row(seed: int) -> None:
    inputs = [drawn(seed + i, T, H, D) for i in range(3)]
    dout = drawn(seed + 3, T, H, D)
    whole = results(inputs, dout, window=(WINDOW, 0))
    part = results([t[:, -LAST:].contiguous() for t in inputs], dout[:, -LAST:].contiguous(), window=(WINDOW, 0))
    assert_same_bits(steps(whole, 2 * WINDOW - LAST, None), steps(part, 2 * WINDOW, None), "the last steps")


@pytest.mark.parametrize("backward", ["split", "fused"])
def test_each_of_thousands_of_tiny_sequences_has_the_bits_it_has_alone(backward: str, seed: int) -> None:
    bounds = [0]
    for i in range(3000):
        bounds.append(bounds[-1] + 1 + i * 5 % 9 + (200 if i % 1000 == 500 else 0))
    inputs = [drawn(seed + i, bounds[-1], 4, 64) for i in range(3)]
    dout = drawn(seed + 3, bounds[-1], 4, 64)
    cu = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    whole = results(inputs, dout, cu_seqlens_q=cu, cu_seqlens_k=cu, backward=backward)
    chosen = [0, 1, 499, 500, 501, 511, 512, 513, 1500, 2048, 2998, 2999]
    for number, (start, end) in enumerate(pairwise(bounds)):
        if number in chosen:
            alone = results([t[:, start:end] for t in inputs], dout[:, start:end].contiguous(), backward=backward)
            assert_same_bits(steps(whole, start, end), alone, f"sequence {number}")


@pytest.mark.parametrize("how", [{}, {"window": (100, 0)}, {"window": (70, 40)}], ids=str)
@pytest.mark.parametrize("D", [16, 64, 128])
def test_one_query_with_its_keys_has_the_bits_of_the_whole(D: int, how: dict[str, Any], seed: int) -> None:
    T, shift = 300, 33
    q, k, v = (drawn(seed + i, T + shift, 2, D) for i in range(3))
    whole, whole_lse = attention(q[:, :T], k, v, causal=True, return_lse=True, **how)
    for t in (0, 30, 31, 63, 64, 94, 95, 127, 128, 200, 255, 299):
        keys = slice(0, t + shift + 1)
        one, lse = attention(q[:, t : t + 1], k[:, keys], v[:, keys], causal=True, return_lse=True, **how)
        assert torch.equal(one[:, 0], whole[:, t]), t
        assert torch.equal(lse[..., 0], whole_lse[..., t]), t


@pytest.mark.parametrize("rows", ["each", "all"])
@pytest.mark.parametrize("D", [32, 64, 128])
def test_a_query_with_its_row_of_a_bias_has_the_bits_of_the_whole(D: int, rows: str, seed: int) -> None:
    T = 300
    q, k, v = (drawn(seed + i, T, 2, D) for i in range(3))
    bias = drawn(seed + 3, T if rows == "each" else 1, 2, T).transpose(1, 2)
    whole, whole_lse = attention(q, k, v, bias=bias, causal=True, return_lse=True)
    for t in (0, 1, 63, 64, 127, 128, 200, 299):
        own = bias[:, :, t : t + 1, : t + 1] if rows == "each" else bias[..., : t + 1]
        one, lse = attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], bias=own, causal=True, return_lse=True)
        assert torch.equal(one[:, 0], whole[:, t]), t
        assert torch.equal(lse[..., 0], whole_lse[..., t]), t


@pytest.mark.parametrize("D", [64, 128])
def test_strides_of_a_bias_change_no_bits(D: int, seed: int) -> None:
    T = 264
    q, k, v = (drawn(seed + i, T, 2, D).expand(2, -1, -1, -1) for i in range(3))
    bias = drawn(seed + 3, T, 2, T).transpose(1, 2).contiguous()
    expected = attention(q, k, v, bias=bias)
    wide = torch.zeros(1, 2, T, T + 9, dtype=bias.dtype, device="cuda")[..., :T].copy_(bias)
    unaligned = torch.zeros(bias.numel() + 1, dtype=bias.dtype, device="cuda")[1:].view_as(bias).copy_(bias)
    row = bias[:, :1, :1].expand(2, 2, T, T)
    assert torch.equal(attention(q, k, v, bias=row), attention(q, k, v, bias=row.contiguous()))
    odd = bias[..., 1:].contiguous()
    repeated = odd[:, :1].expand(2, 2, T, T - 1)
    found, expected_odd = (attention(q, k[:, 1:], v[:, 1:], bias=b) for b in (repeated, repeated.contiguous()))
    assert torch.equal(found, expected_odd)
    for other in (bias.expand(2, -1, -1, -1), bias.mT.contiguous().mT, wide, unaligned):
        assert torch.equal(attention(q, k, v, bias=other), expected), other.stride()


@pytest.mark.parametrize("D", [16, 64, 128])
def test_sequences_side_by_side_with_a_bias_have_the_bits_of_each_alone(D: int, seed: int) -> None:
    bounds = (0, 33, 380, 391)
    q, k, v = (drawn(seed + i, bounds[-1], 2, D) for i in range(3))
    bias = drawn(seed + 3, bounds[-1], 2, bounds[-1]).transpose(1, 2).contiguous()
    ends = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    ids = torch.repeat_interleave(torch.arange(3, device="cuda", dtype=torch.int32), torch.diff(ends))[None]
    packed = attention(q, k, v, bias=bias, causal=True, cu_seqlens_q=ends, cu_seqlens_k=ends)
    apart = attention(q, k, v, bias=bias, causal=True, segment_ids=ids)
    for start, end in pairwise(bounds):
        own = bias[..., start:end, start:end]
        alone = attention(q[:, start:end], k[:, start:end], v[:, start:end], bias=own, causal=True)
        assert torch.equal(packed[:, start:end], alone), start
        assert torch.equal(apart[:, start:end], alone), start


@pytest.mark.parametrize("hidden", [float("-inf"), torch.finfo(torch.bfloat16).min], ids=str)
@pytest.mark.parametrize("D", [16, 64, 128])
def test_a_row_that_a_bias_hides_has_zeros(D: int, hidden: float, seed: int) -> None:
    q, k, v = (drawn(seed + i, 200, 2, D).requires_grad_() for i in range(3))
    bias = drawn(seed + 3, 200, 2, 200).transpose(1, 2).contiguous()
    bias[:, :, 70] = bias[..., 130:] = hidden
    out, lse = attention(q, k, v, bias=bias, return_lse=True)
    assert (out[:, 70] == 0).all()
    assert (lse[..., 70] == -torch.inf).all()
    few = attention(q, k[:, :130], v[:, :130], bias=bias[..., :130])
    torch.testing.assert_close(out, few, rtol=1e-2, atol=1e-2)
    assert all(bool(d.isfinite().all()) for d in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)))


@pytest.mark.parametrize("backward", ["auto", "fused"])
@pytest.mark.parametrize("D", [64, 128])
def test_a_row_with_more_tiles_than_programs_fit_on_the_gpu_has_the_same_bits_again(
    D: int, backward: str, seed: int
) -> None:
    inputs = [drawn(seed + i, 65536, 1, D) for i in range(4)]
    first, second = (results(inputs[:3], inputs[3], backward=backward) for _ in range(2))
    assert_same_bits(first, second, "again")
    assert all(bool(tensor.isfinite().all()) for tensor in first.values())


@triton.jit
def occupy(out_ptr, rounds):  # type: ignore[no-untyped-def]
    """Keep a multiprocessor busy, so that no program with many registers fits beside."""
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    x = at.to(tl.float32)
    for _ in range(rounds):
        x = x * 0.999 + 0.5
    tl.store(out_ptr + at, x)


@pytest.mark.parametrize("backward", ["auto", "fused"])
def test_a_gpu_that_another_stream_keeps_busy_finishes_with_the_same_bits(backward: str, seed: int) -> None:
    inputs = [drawn(seed + i, 4096, 4, 128) for i in range(4)]
    alone = results(inputs[:3], inputs[3], backward=backward)
    programs = torch.cuda.get_device_properties().multi_processor_count - 8
    out = torch.empty(programs * 1024, device="cuda")
    other = torch.cuda.Stream()
    occupy[(programs,)](out, 1, num_warps=32)  # compiled before it is timed
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        occupy[(programs,)](out, 2**25, num_warps=32)
    beside = results(inputs[:3], inputs[3], backward=backward)
    torch.cuda.current_stream().synchronize()
    done_before = other.query()
    other.synchronize()  # it writes to `out` at its end
    assert not done_before, "the other stream was done before"
    assert_same_bits(beside, alone, "beside another kernel")
