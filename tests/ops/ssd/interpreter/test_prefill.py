"""`ssd_prefill` in one call of the kernels for Hopper, in Python: the bits of two calls, in any order of warps."""

from __future__ import annotations

from typing import Any

import pytest
from checks.interpreter import interpreted
from gluon_in_python import emulated

import retrograd
from ops.ssd.calls import IN_TIME, check_prefill
from retrograd.ops.ssd.cases import MAMBA, case
from retrograd.testing.draw import draw, options

LONG = 330  # whose walk is cut into spans of 256 steps
LENGTHS = (1, 63, 64, 65, 191, 256, 257, 320, LONG)
F16: dict[str, Any] = {"dtype": "float16"}
CALLS = {
    "mamba": case("prefill", (2, LONG, 3, 64, 1, 128), **F16),
    "slices, a wide skip": case("prefill", (1, LONG, 2, 128, 2, 64), wide_D=True, initial_state=True, **F16),
    "halves of states": case("prefill", (1, LONG, 2, 64, 1, 256), given=MAMBA - {"D"}, initial_state=True, **F16),
}
BOUNDS = (2, 5, 69, 69, 199, 200, 200, 264, 325)  # of 3, 64, 0, 130, 1, 0, 64 and 61 steps
PACKED = {
    "mamba": case("packed", (1, LONG, 3, 64, 1, 128), cu_seqlens=BOUNDS, **F16),
    "one sequence in spans": case("packed", (1, 1000, 1, 64, 1, 64), cu_seqlens=(0, 0, 970), initial_state=True, **F16),
    "halves of states": case("packed", (1, LONG, 2, 64, 1, 256), cu_seqlens=BOUNDS, initial_state=True, **F16),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("length", LENGTHS)
def test_one_call_has_the_bits_of_two(name: str, length: int, seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS[name], "cpu", seed)
    first = {n: t[:, :length] if n in IN_TIME else t for n, t in inputs.items()}
    with interpreted("sm_90"), emulated(seed):
        check_prefill(first, options(CALLS[name]))


@pytest.mark.parametrize("name", PACKED)
def test_one_call_of_packed_sequences_has_the_bits_of_two(name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        check_prefill(draw(PACKED[name], "cpu", seed), options(PACKED[name]))


def test_the_function_makes_one_call_unless_a_gradient_is_recorded(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("retrograd.ops.torch_functions._ssd", None)
    inputs: dict[str, Any] = draw(CALLS["mamba"], "cpu", seed)
    with interpreted("sm_90"), emulated(seed):
        y, _ = retrograd.ssd_prefill(**inputs, **options(CALLS["mamba"]))
        assert y.isfinite().all()
        inputs["C"].requires_grad_()
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            retrograd.ssd_prefill(**inputs, **options(CALLS["mamba"]))
