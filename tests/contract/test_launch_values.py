"""A launch gives every parameter of its kernel a value, and no value that the kernel does not take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from scaled.triton.kernels import scaled

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import arguments, signature
from retrograd.core.jax import launch as jax_launch
from retrograd.core.program import Array, Launch, Program
from retrograd.core.spec import Param
from retrograd.core.torch import launch as torch_launch
from retrograd.ops.rms_norm.info import INFO
from retrograd.ops.rms_norm.op import OP
from retrograd.ops.rms_norm.triton import launches

SM_90 = SUPPORTED["sm_90"]
X, Y = Array("x", (8,), "float32"), Array("y", (8,), "float32")
POINTERS = {"x_ptr": "x", "scale_ptr": None, "seed_ptr": None, "counts_ptr": None, "y_ptr": "y"}
WHOLE = Launch(scaled, 1, POINTERS, scalars={"size": 8}, constants={"BLOCK": 8})
NO_SIZE = replace(WHOLE, scalars={})
NOTHING_BUT_POINTERS = replace(WHOLE, scalars={}, constants={})
ONE_MORE = replace(WHOLE, scalars={"size": 8, "eps": 1.0})
RENAMED = replace(WHOLE, scalars={"sizes": 8}, constants={"BLOCK": 8, "AGAIN": True})
WRONG = pytest.mark.parametrize(
    ("launch", "text"),
    [
        (NO_SIZE, "scaled: parameters without a value: size"),
        (NOTHING_BUT_POINTERS, "scaled: parameters without a value: size, BLOCK"),
        (ONE_MORE, "scaled: values without a parameter: eps"),
        (RENAMED, "scaled: parameters without a value: size; values without a parameter: sizes, AGAIN"),
    ],
    ids=["missing", "several missing", "superfluous", "both"],
)


def in_torch(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())  # none is needed to get this far
    torch_launch.prepare(program, ["x"], ["y"], SM_90, torch.device("cuda", 0))


def in_jax(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    jax_launch.run(program, SM_90, [jnp.ones(8)])


@WRONG
@pytest.mark.parametrize("way", [in_torch, in_jax])
def test_both_frameworks_refuse_it(way: Callable[..., None], launch: Launch, text: str, monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        way(Program((X,), (Y,), (), (launch,)), monkeypatch)


@WRONG
def test_neither_its_types_nor_its_arguments_are_told(launch: Launch, text: str) -> None:
    for told in (lambda: signature(launch, {"x": X, "y": Y}), lambda: arguments(launch)):
        with pytest.raises(ValueError, match=f"^{text}$"):
            told()


def test_no_value_is_a_value() -> None:
    absent = replace(WHOLE, scalars={"size": None})
    assert ((5,), None) in signature(absent, {"x": X, "y": Y}).constants
    assert arguments(absent) == ["x", None, None, None, "y", None, 8]


def test_a_program_of_an_op_is_refused_when_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = launches._flags

    def mutated(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        monkeypatch.setattr(launches, "_flags", lambda spec, arch: change(sound(spec, arch)))
        INFO.programs(INFO.case("plain"), SM_90)

    with pytest.raises(ValueError, match=r"^forward_whole: parameters without a value: OVERLAP$"):
        mutated(lambda flags: {"GATES": flags["GATES"]})
    with pytest.raises(ValueError, match=r"^forward_whole: values without a parameter: STAGES$"):
        mutated(lambda flags: {**flags, "STAGES": 2})
    mutated(lambda flags: flags)


def test_a_parameter_with_the_name_of_a_float_option_gets_its_value() -> None:
    spec = OP.spec({"x": Param((4, 64), "float32"), "weight": Param((64,), "float32")}, {"eps": 1})
    program = OP.forward(spec).program({}, SM_90)
    assert program is not None
    eps, offset = (program.launches[0].scalars[name] for name in ("eps", "weight_offset"))
    assert (eps, offset) == (1.0, 0.0)
    assert isinstance(eps, float)
