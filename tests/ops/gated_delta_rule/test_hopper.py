"""gated_delta_rule's kernels for Hopper: the calls they take, and reads without a copy."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from checks import programs
from checks.resources import resources, unused_barriers, wrong_descriptors

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Layout, dense
from retrograd.core.spec import Pass
from retrograd.opinfo.info import spec_of
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.ops.gated_delta_rule.hopper import launches
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.ops.gated_delta_rule.op import OP, Spec

SHAPE = (2, 300, 2, 4, 128, 128)
PASSES: tuple[Pass, Pass] = ("fwd", "bwd")
BUILT = {
    "plain": case("plain", SHAPE, wide_dtype="float32"),
    "all": case("all", SHAPE, **ALL),
    "packed": case("packed", (1, *SHAPE[1:]), cu_seqlens=(3, 140, 300), **ALL),
    "own heads": case("own heads", (2, 300, 2, 2, 128, 128), **ALL),
    "three heads": case("three heads", (2, 300, 1, 3, 128, 128), **ALL),
    "fp16": case("fp16", SHAPE, dtype="float16", wide_dtype="float32", **ALL),
    "channels": case("channels", SHAPE, of_channels=True, wide_dtype="float32"),
    "all channels": case("all channels", SHAPE, of_channels=True, **ALL),
    "packed channels": case("packed channels", (1, *SHAPE[1:]), of_channels=True, cu_seqlens=(3, 140, 300), **ALL),
    "fp16 channels": case("fp16 channels", SHAPE, of_channels=True, dtype="float16", wide_dtype="float32", **ALL),
}


def spec(shape: tuple[int, int, int, int, int, int] = SHAPE, **how: Any) -> Spec:
    checked: Spec = spec_of(OP, case("call", shape, **how))
    return checked


def taken(spec: Spec, which: Pass, arch: str = "sm_90") -> bool:
    (hopper,) = OP.only("hopper").implementations
    return hopper.has(spec, SUPPORTED[arch], which)


def taken_of_channels(spec: Spec, which: Pass, arch: str = "sm_90") -> bool:
    (hopper,) = OP.only("hopper.channels").implementations
    return hopper.has(spec, SUPPORTED[arch], which)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"dtype": "float16"},
        {"wide_dtype": "float32", "scale": 0.5},
        {"shape": (2, 1, 3, 9, 128, 128), "initial_state": True, "return_final_state": True},
        {"shape": (1, 300, 2, 2, 128, 128), "cu_seqlens": (5, 100, 290), "normalize_qk": True},
    ],
)
@pytest.mark.parametrize("which", PASSES)
def test_calls_of_16_bits_with_128_channels_are_taken(how: dict[str, Any], which: Pass) -> None:
    assert taken(spec(**how), which)


@pytest.mark.parametrize(
    "how",
    [
        {"dtype": "float32"},
        {"of_channels": True},
        {"shape": (2, 300, 2, 4, 64, 128)},
        {"shape": (2, 300, 2, 4, 128, 256)},
        {"shape": (2, 0, 2, 4, 128, 128)},
    ],
)
@pytest.mark.parametrize("which", PASSES)
def test_all_others_go_to_the_kernels_for_any_gpu(how: dict[str, Any], which: Pass) -> None:
    assert not taken(spec(**how), which)


@pytest.mark.parametrize("how", [{}, {"dtype": "float16"}, {"cu_seqlens": (5, 100, 290), "shape": (1, *SHAPE[1:])}])
@pytest.mark.parametrize("which", PASSES)
def test_a_decay_for_each_channel_has_its_own_kernels(how: dict[str, Any], which: Pass) -> None:
    call = spec(of_channels=True, **how)
    assert taken_of_channels(call, which)
    assert not taken_of_channels(call, which, "sm_100")
    assert not taken_of_channels(spec(**how), which)


@pytest.mark.parametrize(
    "how", [{"dtype": "float32"}, {"shape": (2, 300, 2, 4, 128, 64)}, {"shape": (2, 0, 2, 4, 128, 128)}]
)
def test_but_not_for_other_sizes(how: dict[str, Any]) -> None:
    assert not taken_of_channels(spec(of_channels=True, **how), "fwd")


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "gfx942", "gfx950"])
def test_other_architectures_have_no_such_instructions(arch: str) -> None:
    assert not taken(spec(), "fwd", arch)


def test_an_array_is_read_where_it_lies_if_descriptors_see_it() -> None:
    q, v = spec().q, spec().v
    assert launches.in_place("q", q, Layout(dense(q.shape), aligned=True))
    assert launches.in_place("q", q, Layout((300 * 1024, 1024, 512, 1), aligned=True))  # a part of each step's columns
    assert launches.in_place("v", v, Layout((4 * 300 * 128, 128, 300 * 128, 1), aligned=True))  # heads before steps
    assert not launches.in_place("do", v, Layout((4 * 300 * 128, 128, 300 * 128, 1), aligned=True))
    assert not launches.in_place("q", q, Layout((128, 0, 128, 1), aligned=True))  # the same row at every step
    assert not launches.in_place("q", q, Layout((300 * 1020, 1020, 128, 1), aligned=True))
    assert not launches.in_place("q", q, Layout(dense(q.shape), aligned=False))


@pytest.mark.compile
@pytest.mark.parametrize(
    "name", [name if name == "plain" else pytest.param(name, marks=pytest.mark.slow) for name in BUILT]
)
def test_kernels_keep_their_registers_and_their_shared_memory(name: str) -> None:
    arch = SUPPORTED["sm_90"]
    for program, launch in programs.launches(INFO, BUILT[name], arch):
        compiled = build(launch, program.arrays, arch)
        found = resources(compiled)
        where = f"{launch.kernel.__name__}: {found}"
        assert not unused_barriers(compiled), where
        assert not wrong_descriptors(compiled), where
        if triton.__version__.startswith("3.6."):  # which the plans are made for
            assert found.spills <= launch.allowed_spills, where
        assert found.shared <= arch.shared_memory, where
