"""gated_delta_rule's kernels for the shapes of models, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from checks import programs
from checks.resources import resources, wrong_descriptors

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.spec import Param
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.ops.gated_delta_rule.op import OP
from retrograd.ops.gated_delta_rule.torch_step import IN_PLACE, UPDATE
from retrograd.ops.gated_delta_rule.window.launches import of_window

SHAPES = ("128x128 bfloat16", "256x256 bfloat16", "64x128 float16", "32x64 bfloat16", "8x4 bfloat16",
          "128x128 float32", "256x256 float32", "64x64 float32", "32x32 float32")  # fmt: skip


CHANNELS = " channels"  # with a decay for each channel


def of_shape(shape: str, **options: Any) -> Case:
    of_channels = shape.endswith(CHANNELS)
    sizes, dtype = shape.removesuffix(CHANNELS).split()
    K, V = map(int, sizes.split("x"))
    settings: dict[str, Any] = {"dtype": dtype, "wide_dtype": "float32", "of_channels": of_channels}
    return case(shape, (2, 256, 4, 8, K, V), **settings, **options)


def builds() -> list[Any]:
    """Every shape on every architecture. Every run has one of them, `architectures` one of each other architecture."""
    found = []
    for arch in SUPPORTED:
        for shape in (*SHAPES, *(f"{shape}{CHANNELS}" for shape in SHAPES)):
            marks = [*([pytest.mark.slow] if shape.removesuffix(CHANNELS) != SHAPES[0] else []),
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
@pytest.mark.parametrize("channels", ["", CHANNELS], ids=["of heads", "of channels"])
def test_ptxas_finds_the_operands_of_products_for_heads_of_every_size(channels: str, K: int, V: int) -> None:
    tried = of_shape(f"{K}x{V} bfloat16{channels}", **ALL)
    for program, launch in programs.launches(INFO, tried, SUPPORTED["sm_90"]):
        assert not wrong_descriptors(build(launch, program.arrays, SUPPORTED["sm_90"])), launch.kernel.__name__


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_kept_takes_at_most_twice_as_many_bytes_as_the_values(shape: str) -> None:
    spec = spec_of(OP, of_shape(shape))
    kept = {array.name: array.nbytes for array in OP.forward(spec).outputs if array.name in OP.kept}
    assert kept["states"] <= spec.v.nbytes
    assert sum(kept.values()) <= 2 * spec.v.nbytes


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("of_channels", [False, True], ids=["of heads", "of channels"])
@pytest.mark.parametrize("K", [16, 128, 256])
def test_the_recurrence_in_place_spills_nothing(K: int, of_channels: bool, arch: str) -> None:
    rows = {"q": (3, 2, K), "k": (3, 2, K), "v": (3, 4, 128)}
    params = {name: Param(shape, "bfloat16") for name, shape in rows.items()}
    params |= {"g": Param((3, 4, *((K,) if of_channels else ())), "float32"), "beta": Param((3, 4), "float32")}
    step = UPDATE.spec(params | {"state": Param((3, 4, 128, K), "float32")}, {"normalize_qk": True})
    program = UPDATE.forward(step).program({}, SUPPORTED[arch])
    assert program is not None
    (launch,) = program.launches
    assert resources(build(launch, program.arrays, SUPPORTED[arch])).spills == 0


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_a_step_in_place_is_the_program_of_the_op_between_two_kernels_that_spill_nothing(arch: str) -> None:
    rows = {"q": (3, 2, 128), "k": (3, 2, 128), "v": (3, 4, 64), "g": (3, 4), "beta": (3, 4)}
    params = {name: Param(shape, "bfloat16") for name, shape in rows.items()}
    params |= {f"window_{name}": Param((3, 64, *rows[name][1:]), "bfloat16") for name in rows if name != "q"}
    params |= {"window_state": Param((3, 4, 64, 128), "float32"), "window_steps": Param((3,), "int32")}
    step = IN_PLACE.spec(params, {"normalize_qk": True})
    program = IN_PLACE.forward(step).program({}, SUPPORTED[arch])
    block = OP.forward(of_window(step)).program({}, SUPPORTED[arch])
    assert program is not None
    assert block is not None
    first, *same, last = program.launches
    assert [launch.kernel for launch in same] == [launch.kernel for launch in block.launches]
    for launch in (first, last):
        assert resources(build(launch, program.arrays, SUPPORTED[arch])).spills == 0


def test_a_step_in_place_is_not_taken_where_no_kernels_run_the_op() -> None:
    rows = {"q": (3, 2, 8), "k": (3, 2, 8), "v": (3, 4, 8), "g": (3, 4), "beta": (3, 4)}
    params = {name: Param(shape, "float64") for name, shape in rows.items()}
    params |= {f"window_{name}": Param((3, 64, *rows[name][1:]), "float64") for name in rows if name != "q"}
    params |= {"window_state": Param((3, 4, 8, 8), "float64"), "window_steps": Param((3,), "int32")}
    assert IN_PLACE.implementation(IN_PLACE.spec(params, {}), SUPPORTED["sm_90"], "fwd") is None
