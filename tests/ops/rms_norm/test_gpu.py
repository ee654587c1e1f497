"""rms_norm where 32-bit offsets overflow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from retrograd import rms_norm
from retrograd.ops.rms_norm import reference
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays, call, normal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("large_arrays")]

N = 4096
ROWS = (2**31 + 2**20) // N
BEYOND = 2**31 // N  # the first row whose elements are beyond 2^31


def drawn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal bfloat16, drawn in parts, since fp32 takes twice the memory."""
    tensor = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    for part in tensor.split(2**16):
        part.copy_(normal(part.shape, generator))
    return tensor


def compare_rows(rows: slice, inputs: Arrays, dy: Tensor, result: Arrays) -> None:
    """Check the error budget of y and d x in some rows, which do not depend on the others."""
    part = inputs | {"x": inputs["x"][rows].contiguous()}
    plain = call(reference.rms_norm, part, {}, [dy[rows].contiguous()])
    upcast = {name: tensor.double() for name, tensor in part.items()}
    exact = call(reference.rms_norm, upcast, {}, [dy[rows].double()])
    found = {name: result[name][rows] for name in ("y", "d x")}
    assert_within_budget([(found, plain, exact)], f"rows {rows.start}:{rows.stop}")


def test_more_elements_than_32_bits_count(seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = {"x": drawn((ROWS, N), generator), "weight": normal((N,), generator)}
    dy = drawn((ROWS, N), generator)
    result = call(rms_norm, inputs, {}, [dy])
    for start in (0, BEYOND // 2, BEYOND - 8, ROWS - 16):
        compare_rows(slice(start, start + 16), inputs, dy, result)
    plain, exact = torch.zeros(N, device="cuda"), torch.zeros(N, dtype=torch.float64, device="cuda")
    for x, g in zip(inputs["x"].split(2**15), dy.split(2**15), strict=True):
        part = {"x": x, "weight": inputs["weight"]}
        plain += call(reference.rms_norm, part, {}, [g])["d weight"]
        upcast = {name: tensor.double() for name, tensor in part.items()}
        exact += call(reference.rms_norm, upcast, {}, [g.double()])["d weight"]
    assert_within_budget([({"d weight": result["d weight"]}, {"d weight": plain}, {"d weight": exact})], "all rows")


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
def test_rows_farther_apart_than_32_bits_reach(offset: int, seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    apart = 2**30 + 2**10
    memory, gradients = (torch.empty(4 * apart + N + 1, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    x, dy = (base.as_strided((5, N), (apart, 1), offset) for base in (memory, gradients))
    for tensor in (x, dy):
        tensor.copy_(normal(tensor.shape, generator))
    inputs = {"x": x, "weight": normal((N,), generator)}
    compare_rows(slice(0, 5), inputs, dy, call(rms_norm, inputs, {}, [dy]))


def test_columns_farther_apart_than_32_bits_reach(seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    apart = 2**28 + 3
    x = torch.empty(15 * apart + 64, dtype=torch.bfloat16, device="cuda").as_strided((64, 16), (1, apart))
    x.copy_(normal(x.shape, generator))
    inputs, dy = {"x": x, "weight": normal((16,), generator)}, normal((64, 16), generator).bfloat16()
    compare_rows(slice(0, 64), inputs, dy, call(rms_norm, inputs, {}, [dy]))
