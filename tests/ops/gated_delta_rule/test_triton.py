"""gated_delta_rule's kernels for the shapes of models, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from checks import programs
from checks.resources import resources, wrong_descriptors

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.ops.gated_delta_rule.op import OP

SHAPES = ("128x128 bfloat16", "256x256 bfloat16", "64x128 float16", "32x64 bfloat16", "8x4 bfloat16",
          "128x128 float32", "256x256 float32", "64x64 float32", "32x32 float32")  # fmt: skip


def of_shape(shape: str, **options: Any) -> Case:
    sizes, dtype = shape.split()
    K, V = map(int, sizes.split("x"))
    return case(shape, (2, 256, 4, 8, K, V), dtype=dtype, wide_dtype="float32", **options)


def builds() -> list[Any]:
    """Every shape on every architecture. Every run has one of them, `architectures` one of each other architecture."""
    found = []
    for arch in SUPPORTED:
        for shape in SHAPES:
            marks = [*([pytest.mark.slow] if shape != SHAPES[0] else []),
                     *([pytest.mark.architectures] if arch != "sm_90" else [])]  # fmt: skip
            found.append(pytest.param(arch, shape, id=f"{arch} {shape}", marks=marks))
    return found


@pytest.mark.compile
@pytest.mark.parametrize(("arch", "shape"), builds())
def test_kernels_keep_their_registers_and_their_shared_memory(arch: str, shape: str) -> None:
    seen = set()
    for program, launch in programs.launches(INFO, of_shape(shape, **ALL), SUPPORTED[arch]):
        if (binary := programs.binary(program, launch)) in seen:
            continue
        seen.add(binary)
        found = resources(build(launch, program.arrays, SUPPORTED[arch]))
        where = f"{launch.kernel.__name__}: {found}"
        if triton.__version__.startswith("3.6."):  # which the plans are made for
            assert found.spills <= launch.allowed_spills, where
            assert found.stack == 0 or launch.allowed_spills, where
        assert found.shared <= SUPPORTED[arch].shared_memory, where


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("V", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("K", [16, 32, 64, 128, 256])
def test_ptxas_finds_the_operands_of_products_for_heads_of_every_size(K: int, V: int) -> None:
    for program, launch in programs.launches(INFO, of_shape(f"{K}x{V} bfloat16", **ALL), SUPPORTED["sm_90"]):
        assert not wrong_descriptors(build(launch, program.arrays, SUPPORTED["sm_90"])), launch.kernel.__name__


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_kept_takes_at_most_twice_as_many_bytes_as_the_values(shape: str) -> None:
    spec = spec_of(OP, of_shape(shape))
    kept = {array.name: array.nbytes for array in OP.forward(spec).outputs if array.name in OP.kept}
    assert kept["states"] <= spec.v.nbytes
    assert sum(kept.values()) <= 2 * spec.v.nbytes
