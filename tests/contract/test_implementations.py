"""Every implementation honours each argument and option that it lists: it accepts no call with one that it ignores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.programs import check_honours

from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.op import Implementation
from retrograd.core.spec import arguments, options
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info, infos
from retrograd.ops.rms_norm.cases import case

EACH_INFO = pytest.mark.parametrize(
    "info", [info for info in infos() if info.op and info.op.implementations], ids=lambda info: info.name
)


def without_effect(info: OpInfo, case: Case) -> set[str]:
    """Options without effect: `norm_before_gate` if the gate is absent, `prenorm` if the residual is absent.

    Of attention `backward`: kernels have only "split", which is what "auto" stands for. With a window, `causal` may
    change nothing, and with `causal` the window's right side.
    """
    if info.name == "attention":
        return {"backward"} | ({"causal", "window"} if case.options.get("window") else set())
    if info.name != "rms_norm":
        return set()
    idle = {"gate": "norm_before_gate", "residual": "prenorm"}
    return {option for argument, option in idle.items() if argument not in case.inputs}


def variations(info: OpInfo, arch: Arch) -> int:
    cases = [case for case in info.cases if all(0 not in tensor.shape for tensor in case.inputs.values())]
    return sum(check_honours(info, case, arch, without_effect(info, case)) for case in cases)


@EACH_INFO
@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_another_value_of_an_option_changes_the_program_or_moves_the_call(info: OpInfo, arch: str) -> None:
    assert variations(info, SUPPORTED[arch])


@EACH_INFO
def test_an_implementation_takes_nothing_that_its_op_does_not_declare(info: OpInfo) -> None:
    assert info.op is not None
    assert info.op.implementations
    for implementation in info.op.implementations:
        assert implementation.takes <= {*arguments(info.op.call), *options(info.op.call)}


def test_a_kernel_that_ignores_what_its_list_names_is_found() -> None:
    """The kernels for long rows support no residual and no gate."""
    norm = info("rms_norm")
    assert norm.op is not None
    hopper, triton = norm.op.implementations
    greedy = Implementation(hopper.package, hopper.takes | {"bias", "gate", "norm_before_gate"})
    broken = replace(norm, op=replace(norm.op, implementations=(greedy, triton))).variant()
    broken = replace(broken, cases=[case("long", (4, 16384), bias=True), case("gated", (4, 16384), gate="bfloat16")])
    with pytest.raises(AssertionError, match=r"hopper ignores (bias|gate)"):
        variations(broken, SUPPORTED["sm_90"])


def test_an_implementation_that_is_named_is_the_only_one() -> None:
    norm = info("rms_norm")
    assert norm.op is not None
    assert [one.name for one in norm.op.only("hopper").implementations] == ["hopper"]
    with pytest.raises(ValueError, match="implementation is 'cuda', expected one of hopper, triton"):
        norm.op.only("cuda")
