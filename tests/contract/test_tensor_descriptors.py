"""Tensor descriptors from the host, tried on a load of attention: q of a packed (B, T, 3, H, D)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from described_kernels import B, D, H, T, doubled, doubled_in_gluon, program
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build, signature
from retrograd.core.program import Array
from retrograd.core.torch.launch import Described, prepare

SM_90 = SUPPORTED["sm_90"]
KERNELS = pytest.mark.parametrize("kernel", [doubled, doubled_in_gluon], ids=["triton", "gluon"])


@pytest.mark.compile
@KERNELS
def test_a_block_is_copied_by_the_tensor_memory_accelerator(kernel: Any) -> None:
    made = program(kernel)
    compiled = build(made.launches[0], made.arrays, SM_90)
    assert "cp.async.bulk.tensor.4d" in compiled.asm["ptx"]
    assert len(compiled.metadata.tensordesc_meta) == 1
    assert not compiled.metadata.global_scratch_size


@pytest.mark.compile
def test_a_descriptor_has_all_that_tritons_own_has() -> None:
    described = Described(0, program(doubled).launches[0].descriptors["q"])
    assert [field.name for field in fields(TensorDescriptor) if not hasattr(described, field.name)] == []


@KERNELS
def test_shape_and_strides_are_no_part_of_the_binary(kernel: Any) -> None:
    signatures = [signature(made.launches[0], made.arrays) for made in (program(kernel), program(kernel, times=1))]
    assert signatures[0] == signatures[1]


def test_an_array_that_may_begin_anywhere_is_refused() -> None:
    made = program(doubled)
    unaligned = {**made.arrays, "q": Array("q", (B, T, H, D), "bfloat16", aligned=False)}
    with pytest.raises(ValueError, match="q has a tensor descriptor, but may begin anywhere"):
        signature(made.launches[0], unaligned)


def packed() -> Tensor:
    return torch.randn(B, T, 3, H, D, device="cuda", dtype=torch.bfloat16)


@pytest.mark.gpu
@KERNELS
def test_it_reads_where_the_array_lies_in_pytorch(kernel: Any) -> None:
    run = prepare(program(kernel), ["q"], ["out"], SM_90, torch.device("cuda", 0))
    for _ in range(2):
        q = packed()[:, :, 0]
        (out,) = run([q])
        assert torch.equal(out, 2 * q)


@pytest.mark.gpu
@KERNELS
def test_it_reads_the_same_in_jax(kernel: Any) -> None:
    import jax

    from retrograd.core.jax.launch import run
    from retrograd.testing.jax_call import to_jax, to_torch

    q = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16)
    made = program(kernel, times=1)
    (out,) = jax.jit(lambda q: run(made, SM_90, [q]))(to_jax(q))
    assert torch.equal(to_torch(out, q.device), 2 * q)
