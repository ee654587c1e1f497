"""Products of kernels that a compiler may get wrong: some releases of Triton were reported to do so on Hopper."""

from __future__ import annotations

import pytest
import torch
from product_kernels import through_transposed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize(("M", "N", "K"), [(64, 64, 64), (64, 64, 128), (128, 64, 64), (64, 128, 64), (32, 32, 64)])
def test_a_product_with_a_transposed_product_is_exact(
    M: int, N: int, K: int, num_warps: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    # Sums of -1, 0 and 1 are exact in every dtype, so nothing rounds.
    a, b, c = (torch.randint(-1, 2, (rows, K), generator=generator, device="cuda").to(dtype) for rows in (M, N, M))
    out = torch.full((N, K), torch.nan, device="cuda")
    through_transposed[(1,)](a, b, c, out, M, N, K, num_warps=num_warps)
    assert torch.equal(out, ((a.double() @ b.double().T).T @ c.double()).float())
