"""Arrays that are passed to a kernel as named tuples of a pointer and strides."""

from __future__ import annotations

import pytest
import torch
from strided_kernels import COLUMNS, ROWS, Rows, program
from torch import Tensor

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build, signature
from retrograd.core.torch.launch import prepare

SM_90 = SUPPORTED["sm_90"]
STRIDES = (COLUMNS * 2, 1), (1, ROWS)  # of a, every other row; of b, transposed


def drawn(device: str = "cpu") -> tuple[Tensor, Tensor]:
    return torch.randn(2 * ROWS, COLUMNS, device=device)[::2], torch.randn(COLUMNS, ROWS, device=device).T


def test_strides_of_one_and_absent_arrays_are_compiled_in() -> None:
    made = program(STRIDES[0], None)
    found = signature(made.launches[0], made.arrays)
    assert dict(found.types)["a"] == Rows("*fp32", "i32", "constexpr")
    assert dict(found.types)["b"] == Rows("constexpr", "constexpr", "constexpr")
    assert {((0, 2), 1), ((1, 0), None), ((1, 1), None)} <= set(found.constants)
    assert {((0, 0), 16), ((0, 1), 16)} <= set(found.hints)


@pytest.mark.compile
@pytest.mark.parametrize("b", [STRIDES[1], None])
def test_it_compiles(b: tuple[int, int] | None) -> None:
    made = program(STRIDES[0], b)
    assert "ld.global" in build(made.launches[0], made.arrays, SM_90).asm["ptx"]


@pytest.mark.gpu
def test_a_gpu_reads_by_these_strides() -> None:
    a, b = drawn("cuda")
    run = prepare(program(*STRIDES), ["a", "b"], ["out"], SM_90, torch.device("cuda", 0))
    assert torch.equal(run([a, b])[0], a + b)
    alone = prepare(program(STRIDES[0], None), ["a"], ["out"], SM_90, torch.device("cuda", 0))
    assert torch.equal(alone([a])[0], a)


@pytest.mark.gpu
def test_jax_passes_them_too() -> None:
    import jax

    from retrograd.core.jax.launch import run
    from retrograd.testing.jax_call import to_jax, to_torch

    a, b = torch.randn(ROWS, COLUMNS, device="cuda"), torch.randn(ROWS, COLUMNS, device="cuda")
    made = program((COLUMNS, 1), (COLUMNS, 1))
    (out,) = jax.jit(lambda a, b: run(made, SM_90, [a, b]))(to_jax(a), to_jax(b))
    assert torch.equal(to_torch(out, a.device), a + b)
