"""The fuzz itself: the text of a call repeats it, and errors are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import strategies as st
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.cases import Tensor as Drawn
from retrograd.ops.infos import NAMES, info

from . import bad as bads
from . import good as goods
from . import paste
from .bad import Bad, Bent, bad, bent
from .draws import each
from .good import Good, good

PLAIN = Good("rms_norm", Case("fuzzed", {"x": Drawn((3, 8), "float32"), "weight": Drawn((8,), "float32")}))


@pytest.mark.parametrize("op", NAMES)
def test_the_text_of_a_call_makes_it_again(op: str, seed: int) -> None:
    def check(call: Good | Bad | Bent) -> None:
        assert eval(repr(call), vars(paste)) == call

    each(st.one_of(good(op), bad(op, "torch"), bent(op)), 20, seed, check)


def test_an_op_without_a_file_has_its_small_cases_drawn(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(goods, "file_of", lambda op, name: None)
    small = {case.name for case in info("rms_norm").tagged("strided")}
    drawn = set()
    each(good("rms_norm"), 20, seed, lambda call: drawn.add(call.case.name))
    assert len(drawn) > 1
    assert drawn <= small


def broken(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    monkeypatch.setattr(goods, "info", lambda name: replace(info(name), torch=function))


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    PLAIN.check()
    broken(monkeypatch, lambda x, weight: info("rms_norm").torch(x, weight) * 1.001)
    with pytest.raises(AssertionError, match="rms_norm"):
        PLAIN.check()


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda x, weight: info("rms_norm").torch(x, weight.detach() + 0 * weight))
    with pytest.raises(AssertionError, match="d weight"):
        PLAIN.check()


def test_a_wrong_stride_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_if_dense(x: Tensor, weight: Tensor) -> Any:
        return info("rms_norm").torch(x.as_strided(x.shape, (x.shape[1], 1)), weight)

    broken(monkeypatch, as_if_dense)
    PLAIN.check()
    with pytest.raises(AssertionError, match="rms_norm"):
        replace(PLAIN, layouts={"x": "sliced"}).check()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("retrograd.rms_norm(x=torch.ones((2, 8)))", "the call was taken"),
        ("retrograd.rms_norm(x=torch.ones((2, 8)), residual=torch.ones(8))", "not named|is named"),
        ("retrograd.rms_norm(x=torch.ones((2, 8)).as_strided((2, 9), (8, 1)))", "RuntimeError"),
        ("retrograd.rms_norm(y=3)", "the op is not named"),
    ],
)
def test_a_bad_call_that_is_not_refused_by_name_is_found(text: str, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        Bad(text, "rms_norm", ("weight",)).check()


def test_an_array_that_is_spread_where_it_should_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {**PLAIN.case.inputs, "weight": Drawn((1,), "float32")}
    call = Bent(replace(PLAIN, case=replace(PLAIN.case, inputs=inputs)))
    call.check()
    taking = replace(info("rms_norm"), torch=lambda x, weight: info("rms_norm").torch(x, weight.abs().expand(8)))
    monkeypatch.setattr(bads, "info", lambda name: taking)
    monkeypatch.setattr(goods, "info", lambda name: taking)
    with pytest.raises(AssertionError):
        call.check()
