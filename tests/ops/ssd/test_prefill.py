"""`ssd_prefill` in one call of the kernels for Hopper: the calls they take, what they are compiled to, their bits."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from checks.resources import resources, spills_in_loops, wrong_descriptors

import retrograd
from ops.ssd.calls import IN_TIME, check_prefill
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.op import Op
from retrograd.core.program import Launch
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.ssd.cases import MAMBA, case
from retrograd.ops.ssd.generation import AT_BORDER
from retrograd.ops.ssd.op import OP
from retrograd.testing.draw import draw, leaves, options

HOPPER = SUPPORTED["sm_90"]
SHAPE = (2, 1000, 6, 64, 2, 128)
PACKED = (2, 5, 69, 69, 199, 200, 200, 840, 997)  # of 3, 64, 0, 130, 1, 0, 640 and 157 steps
FLOATS = re.compile(r"^\s*(?:@\S+ )?((?:\w+\.)+(?:f32|bf16|bf16x2)\b[\w.]*|wgmma\S+)", re.MULTILINE)


def call(shape: tuple[int, int, int, int, int, int] = SHAPE, **how: Any) -> Case:
    return case("prefill", shape, return_final_state=True, **how)


@pytest.mark.parametrize(
    ("how", "taken"),
    [
        ({}, True),
        ({"shape": (2, 3, 6, 128, 3, 256), "dtype": "float16", "wide_D": True, "initial_state": True}, True),
        ({"shape": (1, 1000, 6, 64, 2, 128), "cu_seqlens": PACKED}, True),
        ({"shape": (2, 0, 6, 64, 2, 128)}, False),
        ({"dtype": "float32"}, False),
        ({"given": MAMBA | {"z"}}, False),
        ({"shape": (2, 1000, 6, 64, 2, 32)}, False),
    ],
)
def test_calls_are_taken_where_the_kernels_for_hopper_run_the_sequence(how: dict[str, Any], taken: bool) -> None:
    spec = spec_of(AT_BORDER, call(**how))
    assert (AT_BORDER.implementation(spec, HOPPER, "fwd") is not None) is taken
    for arch in ("sm_80", "sm_100", "gfx942"):
        assert AT_BORDER.implementation(spec, SUPPORTED[arch], "fwd") is None


def walk(op: Op, call: Case) -> tuple[Launch, Any]:
    """The launch of a call's walk, and its binary."""
    program = op.forward(spec_of(op, call)).program({}, HOPPER)
    assert program is not None
    *_, last = program.launches
    return last, build(last, program.arrays, HOPPER)


@pytest.mark.compile
@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param(
            {"shape": (1, 1000, 6, 128, 2, 128), "cu_seqlens": PACKED, "given": frozenset()}, marks=pytest.mark.slow
        ),
        pytest.param({"shape": (2, 1000, 6, 64, 2, 64)}, marks=pytest.mark.slow),
        pytest.param({"initial_state": True}, marks=pytest.mark.slow),
        pytest.param({"shape": (2, 1000, 6, 64, 2, 256), "initial_state": True}, marks=pytest.mark.slow),
    ],
)
def test_its_arithmetic_is_that_of_the_sequence_and_no_more_is_spilled(how: dict[str, Any]) -> None:
    launch, found = walk(AT_BORDER, call(**how))
    _, expected = walk(OP, call(**how))
    assert FLOATS.findall(found.asm["ptx"]) == FLOATS.findall(expected.asm["ptx"])
    assert resources(found).spills <= launch.allowed_spills
    assert spills_in_loops(found) <= 10  # loop invariants: 4 with Triton 3.6, 9 with 3.9; `ssd` itself has 3 with 3.6
    assert not wrong_descriptors(found)


ON_A_GPU = {
    "mamba": case("prefill", SHAPE),
    "slices, a wide skip": case("prefill", (3, 1000, 6, 128, 3, 64), dtype="float16", wide_D=True, initial_state=True),
    "halves of states": case("prefill", (2, 1000, 20, 64, 1, 256), given=frozenset(), initial_state=True),
    "many walks": case("prefill", (5, 1000, 80, 64, 1, 128)),
}


def needs_hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 191, 257, 960, 999, 1000])
def test_one_call_has_the_bits_of_two(name: str, length: int, seed: int) -> None:
    needs_hopper()
    inputs: dict[str, Any] = draw(ON_A_GPU[name], "cuda", seed)
    check_prefill({n: t[:, :length] if n in IN_TIME else t for n, t in inputs.items()}, options(ON_A_GPU[name]))


@pytest.mark.gpu
def test_a_call_with_a_gradient_has_the_same_bits(seed: int) -> None:
    needs_hopper()
    inputs: dict[str, Any] = draw(ON_A_GPU["mamba"], "cuda", seed)
    expected, _ = retrograd.ssd_prefill(**inputs, **options(ON_A_GPU["mamba"]))
    inputs = {**leaves(inputs)}
    y, _ = retrograd.ssd_prefill(**inputs, **options(ON_A_GPU["mamba"]))
    assert y.requires_grad
    assert torch.equal(y, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("N", [64, 128, 256])
@pytest.mark.parametrize("initial_state", [False, True])
def test_one_call_of_packed_sequences_has_the_bits_of_two(N: int, initial_state: bool, seed: int) -> None:
    needs_hopper()
    packed = case("packed", (1, 1000, 6, 64, 2, N), cu_seqlens=PACKED, initial_state=initial_state)
    check_prefill(draw(packed, "cuda", seed), options(packed))
