"""attention's kernels for Hopper: the calls they take, and what the assembler makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.cases import Case
from retrograd.core.op import Backward, Forward
from retrograd.core.program import Layout, dense
from retrograd.core.room import spec_of
from retrograd.ops.attention.cases import case
from retrograd.ops.attention.hopper import launches
from retrograd.ops.attention.hopper.plan import TUNED
from retrograd.ops.attention.op import OP, Spec
from retrograd.testing.resources import resources, serialized

HOPPER = SUPPORTED["sm_90"]
BOUNDS = (0, 100, 260)


def spec(D: int = 64, **how: Any) -> Spec:
    checked: Spec = spec_of(OP, case("call", (1, 260, 260, 4, 2, D), **how))
    return checked


def taken(spec: Spec, arch: str = "sm_90") -> bool:
    (hopper,) = OP.only("hopper").implementations
    return hopper.has(spec, SUPPORTED[arch], "fwd")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"D": 128, "dtype": "float16"},
        {"causal": True, "window": (30, 0), "softcap": 3.0, "sinks": True, "scale": 0.2, "return_lse": True},
        {"packed": (BOUNDS, BOUNDS)},
        {"backward": "fused"},
    ],
    ids=str,
)
def test_it_takes(how: dict[str, Any]) -> None:
    assert taken(spec(**how))


@pytest.mark.parametrize(
    "how",
    [
        {"D": 32},
        {"D": 80},
        {"value": 128},
        {"dtype": "float32"},
        {"bias": (1, 4, 260, 260)},
        {"slopes": (4,)},
        {"seed": 1, "dropout_p": 0.1},
        {"segments": ((0,) * 260,)},
        {"scale": -0.3},  # the largest score is that of the largest product
        {"scale": 0.0},
    ],
    ids=str,
)
def test_it_leaves_to_the_portable_kernels(how: dict[str, Any]) -> None:
    assert not taken(spec(**how))


def test_it_needs_hopper() -> None:
    assert [name for name in SUPPORTED if taken(spec(), name)] == ["sm_90"]


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (30, 5)},
    "softcap": {"causal": True, "softcap": 3.0, "sinks": True},
    "packed": {"causal": True, "packed": (BOUNDS, BOUNDS)},
}
CASES = {f"{name}_{D}": case(name, (1, 260, 260, 4, 2, D), **how) for D in TUNED for name, how in KINDS.items()}
QUICK = ("causal_128", "window_64")  # the others are slow
OF_FORWARD = [pytest.param(c, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, c in CASES.items()]
OF_BACKWARD = [each for each in OF_FORWARD if each.id != "softcap_128"]


@pytest.mark.compile
@pytest.mark.parametrize("case", OF_FORWARD)
def test_products_run_beside_the_softmax(case: Case) -> None:
    program = Forward(OP, spec_of(OP, case)).program({}, HOPPER)
    assert program is not None
    *_, forward = program.launches
    compiled = build(forward, program.arrays, HOPPER)
    assert not serialized(compiled)
    assert resources(compiled).spills <= forward.allowed_spills


@pytest.mark.compile
@pytest.mark.parametrize("case", OF_BACKWARD)
def test_products_of_the_backward_pass_run_beside_each_other(case: Case) -> None:
    spec: Spec = spec_of(OP, case)
    task = Backward(OP, spec, frozenset("qkv"))
    plan = launches.planned(spec, HOPPER, "bwd")
    program = launches.backward(spec, task.inputs, task.outputs, {}, HOPPER, plan)
    (walk,) = (launch for launch in program.launches if launch.kernel.__name__ == "backward")
    compiled = build(walk, program.arrays, HOPPER)
    assert not serialized(compiled)
    assert resources(compiled).spills <= walk.allowed_spills


def test_an_array_that_no_descriptor_can_take_is_copied() -> None:
    def copied(strides: tuple[int, ...], *, aligned: bool = True) -> bool:
        program = Forward(OP, spec()).program({"k": Layout(strides, aligned)}, HOPPER)
        assert program is not None
        return next(array.copied for array in program.inputs if array.name == "k")

    shape = (1, 260, 2, 64)
    assert not copied(dense(shape))
    assert not copied((260 * 6 * 64, 6 * 64, 64, 1))  # a part of a packed qkv
    assert not copied((2 * 260 * 64, 64, 260 * 64, 1))  # heads first
    assert copied((260 * 130, 130, 65, 1))
    assert copied((260 * 256, 256, 128, 2))
    assert copied(dense(shape), aligned=False)
