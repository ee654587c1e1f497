"""causal_conv1d's kernels for contiguous time, which dense cases never use: compiled everywhere, chosen by strides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.programs import binary
from checks.resources import resources

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Layout, Program
from retrograd.core.spec import Param
from retrograd.ops.causal_conv1d.op import OP, Spec
from retrograd.ops.causal_conv1d.triton.launches import planned

SHAPE = (8, 4096, 4096)
SPEC = Spec(Param(SHAPE, "bfloat16"), Param((4096, 4), "bfloat16"), activation="silu")
STATES = replace(
    SPEC,
    x=Param((2, 1003, 96), "float32"),
    weight=Param((96, 3), "float32"),
    bias=Param((96,), "float32"),
    initial_state=Param((2, 96, 2), "float32"),
    return_final_state=True,
)
WIDE = replace(
    STATES, weight=Param((96, 8), "float32"), initial_state=Param((2, 96, 7), "float32")
)  # two vectors on either side
LAYOUTS = {"x": ("x",), "dy": ("dy",), "both": ("x", "dy")}


def programs(spec: Spec, in_time: tuple[str, ...], arch: str) -> list[Program]:
    """The forward and the backward program for arrays of which some have contiguous time."""
    _, T, D = spec.x.shape
    layouts = {name: Layout((T * D, 1, T)) for name in in_time}
    wanted = frozenset(spec.arguments)
    compiled = [call.program(layouts, SUPPORTED[arch]) for call in (OP.forward(spec), OP.backward(spec, wanted))]
    return [program for program in compiled if program is not None]


def names(spec: Spec, in_time: tuple[str, ...]) -> list[str]:
    return [program.launches[0].kernel.__name__ for program in programs(spec, in_time, "sm_90")]


def test_the_kernels_follow_the_strides() -> None:
    assert names(SPEC, ()) == ["forward_channels", "backward_channels"]
    assert names(SPEC, ("x",)) == ["forward_time", "backward_time"]
    assert names(SPEC, ("dy",)) == ["forward_channels", "backward_time"]
    packed = replace(SPEC, x=Param((1, *SHAPE[1:]), "bfloat16"), cu_seqlens=Param((9,), "int32"))
    assert names(packed, ("x", "dy")) == ["forward_channels", "backward_channels"]


@pytest.mark.parametrize("in_time", [(), *LAYOUTS.values()], ids=["none", *LAYOUTS])
@pytest.mark.parametrize("arch", SUPPORTED)
def test_a_row_meets_the_same_binaries_in_every_batch(arch: str, in_time: tuple[str, ...]) -> None:
    def binaries(B: int) -> list[object]:
        spec = replace(SPEC, x=Param((B, *SHAPE[1:]), "bfloat16"))
        return [binary(p, p.launches[0]) for p in programs(spec, in_time, arch)]

    for B in (1, 2, 3, 64, 1021):
        assert binaries(B) == binaries(8)


@pytest.mark.parametrize("T", [1, 7, 1000, 4096, 2**20])
def test_every_step_belongs_to_one_program(T: int) -> None:
    for B in (1, 8, 1000):
        spec = replace(SPEC, x=Param((B, T, 4096), "bfloat16"))
        for tile in (planned(spec, SUPPORTED["sm_90"], "fwd").walk, planned(spec, SUPPORTED["sm_90"], "bwd").walk):
            steps = tile.steps(spec)
            assert steps % tile.unroll == 0
            assert (tile.chunks(spec) - 1) * tile.lanes * steps < T <= tile.chunks(spec) * tile.lanes * steps


EVERY_RUN = {("sm_90", "x", "bench"), ("sm_90", "dy", "states"), ("sm_90", "both", "wide")}
BUILDS = [
    pytest.param(arch, in_time, spec, id="-".join(build), marks=() if build in EVERY_RUN else pytest.mark.slow)
    for arch in SUPPORTED
    for name, in_time in LAYOUTS.items()
    for build, spec in (((arch, name, "bench"), SPEC), ((arch, name, "states"), STATES), ((arch, name, "wide"), WIDE))
]


@pytest.mark.compile
@pytest.mark.parametrize(("arch", "in_time", "spec"), BUILDS)
def test_a_kernel_keeps_its_registers_and_its_shared_memory(arch: str, in_time: tuple[str, ...], spec: Spec) -> None:
    for program in programs(spec, in_time, arch):
        for launch in program.launches:
            found = resources(build(launch, program.arrays, SUPPORTED[arch]))
            assert found.spills == 0, f"{launch.kernel.__name__}: registers spill to memory: {found}"
            assert found.stack == 0, f"{launch.kernel.__name__}: the kernel needs a stack: {found}"
            assert found.shared <= SUPPORTED[arch].shared_memory
