"""The kernels for Hopper of `attention_step_`: the calls they take, and what they are compiled to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import triton
from checks.resources import resources, serialized, unused_barriers

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Layout, Program, dense
from retrograd.core.spec import Param
from retrograd.ops.attention.hopper.query.plan import LONG, QueryPlan, planned
from retrograd.ops.attention.step import Query
from retrograd.ops.attention.torch_step import QUERY

HOPPER = SUPPORTED["sm_90"]


def spec(
    D: int = 128, *, V: int | None = None, dtype: str = "bfloat16", heads: int = 8, batch: int = 3, **options: Any
) -> Query:
    """A step of three rows, with two heads of keys."""
    params = {"q": (batch, heads, D), "k": (batch, 500, 2, D), "v": (batch, 500, 2, V or D)}
    given = {name: Param(shape, dtype) for name, shape in params.items()}
    scores = dict.fromkeys(("window", "scale", "softcap"))
    checked: Query = QUERY.spec(given | {"after": Param((batch,), "int32")}, scores | options)
    return checked


def program(call: Query, structure: str | None = None) -> Program:
    """Its program, by one structure."""
    op = replace(QUERY, replan=lambda plan: replace(plan, structure=structure or plan.structure))
    found = op.forward(call).program({}, HOPPER)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("how", "taken"),
    [
        ({}, True),
        ({"D": 64, "dtype": "float16", "window": (30, 0), "softcap": 3.0, "scale": 0.2}, True),
        ({"D": 192, "V": 128, "heads": 128}, True),
        ({"heads": 130}, False),  # 65 heads share one
        ({"D": 32}, True),
        ({"D": 24}, False),
        ({"D": 128, "V": 64}, False),
        ({"dtype": "float32"}, False),
        ({"scale": -0.3}, False),
        ({"batch": 0}, False),
    ],
    ids=str,
)
def test_steps_are_taken_where_the_kernels_for_hopper_run_the_sequence(how: dict[str, Any], taken: bool) -> None:
    assert (QUERY.implementation(spec(**how), HOPPER, "fwd") is not None) is taken
    assert QUERY.implementation(spec(**how), SUPPORTED["sm_100"], "fwd") is None


def test_a_cache_that_no_descriptor_can_take_is_copied() -> None:
    call = spec()
    strides = dense(call.k.shape)
    found = QUERY.forward(call).program({"q": Layout(dense(call.q.shape)), "k": Layout(strides, aligned=False)}, HOPPER)
    assert found is not None
    assert [array.name for array in found.inputs if array.copied] == ["k"]


def test_long_caches_of_few_rows_are_cut_into_blocks() -> None:
    def structure(capacity: int, **how: Any) -> str:
        call = spec(**how)
        size = replace(call.k, shape=(call.k.shape[0], capacity, *call.k.shape[2:]))
        plan: QueryPlan = planned(replace(call, k=size, v=size), HOPPER, "fwd")
        return plan.structure

    assert structure(LONG - 1) == "walk"
    assert structure(LONG) == "blocks"
    assert structure(LONG, batch=40) == "walk"
    assert structure(LONG, window=(LONG - 2, 0)) == "walk"
    assert structure(LONG, window=(LONG - 1, 0)) == "blocks"


LAUNCHES = {"walk": ["walk"], "blocks": ["score_blocks", "exponentials", "sum_values"]}
COMPILED: dict[str, dict[str, Any]] = {
    "32": {"D": 32},
    "64": {"D": 64},
    "64, two programs on a multiprocessor": {"D": 64, "batch": 100},
    "128": {},
    "128, all columns": {"batch": 100, "window": (300, 0), "softcap": 5.0},
    "192 and 128": {"D": 192, "V": 128},
    "256": {"D": 256},
    "256, all columns": {"D": 256, "batch": 100},
}
QUICK = ("128",)
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in COMPILED]


@pytest.mark.compile
@pytest.mark.parametrize("structure", LAUNCHES)
@pytest.mark.parametrize("name", EACH)
def test_their_products_are_those_of_hopper_and_nothing_is_spilled(name: str, structure: str) -> None:
    made = program(spec(**COMPILED[name]), structure)
    assert [launch.kernel.__name__ for launch in made.launches] == LAUNCHES[structure]
    for launch in made.launches:
        compiled = build(launch, made.arrays, HOPPER)
        assert ("wgmma.mma_async" in compiled.asm["ptx"]) is (launch.kernel.__name__ != "exponentials")
        assert not unused_barriers(compiled)
        if triton.__version__.startswith("3.6."):
            assert not serialized(compiled)
            assert resources(compiled).spills == 0
            assert resources(compiled).registers <= (launch.max_registers or 255)
