"""Kernels with one deliberate error each, which the contract has to detect in the interpreter.

An interpreted kernel looks up its helpers like any Python function, so a test can replace a helper by a broken one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import triton.language as tl
from checks import contract
from checks.interpreter import as_float16, forget_plans
from ops.rms_norm.interpreter.test_kernels import check_rounded_sum, smaller

from retrograd.core.kernels import numerics
from retrograd.ops.rms_norm.info import INFO
from retrograd.ops.rms_norm.triton import backward, forward, launches, plan

SEED = 7
Broken = Callable[..., Any]


def check(case: str, which: Callable[..., None] = contract.check_errors, **arguments: Any) -> None:
    """Run one check of the contract on a case, with a new plan."""
    forget_plans()
    which(INFO, as_float16(INFO.case(case)), device="cpu", seed=SEED, **arguments)


def breaks(
    patch: pytest.MonkeyPatch, module: Any, helper: str, broken: Callable[[Any], Broken], case: str, **check_of: Any
) -> None:
    """Assert that a case passes its check, and fails it with the helper broken; `broken` receives the sound one."""
    check(case, **check_of)
    patch.setattr(module, helper, broken(getattr(module, helper)))
    with pytest.raises(AssertionError):
        check(case, **check_of)


def test_a_wrong_sign_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch, backward, "output_gradient", lambda sound: lambda *args: -sound(*args), "plain")


def test_an_offset_that_the_backward_pass_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch, backward, "weighted", lambda sound: lambda dv, weight, _: sound(dv, weight, 0.0), "gemma")


def test_a_bias_that_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbiased(sound: Any) -> Broken:
        return lambda x_hat, weight, offset, bias, gate, gates: sound(x_hat, weight, offset, None, gate, gates)

    breaks(monkeypatch, forward, "scale_and_gate", unbiased, "bias")


@pytest.mark.parametrize("case", ["gate_before", "gate_after"])
def test_a_derivative_of_the_gate_without_its_second_term(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch, backward, "silu_grad", lambda _: numerics.sigmoid, case)


@pytest.mark.parametrize("case", ["gate_sigmoid", "kimi"])
def test_a_derivative_of_a_sigmoid_without_its_second_factor(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch, backward, "sigmoid_grad", lambda _: numerics.sigmoid, case)


def test_a_gradient_of_the_sum_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(sound: Any) -> Broken:
        return lambda loaded, *rest: sound(loaded._replace(dsum=None), *rest)

    breaks(monkeypatch, backward, "store_row_gradients", without, "prenorm")


def test_columns_beyond_the_row_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones_beyond(sound: Any) -> Broken:
        def load(ptr: Any, rows: Any, head: Any, columns: Any, dims: Any, strides: Any, mask: Any) -> Any:
            loaded = sound(ptr, rows, head, columns, dims, strides, mask)
            return loaded if loaded is None else tl.where(mask, loaded, tl.full([], 1.0, loaded.dtype))

        return load

    breaks(monkeypatch, forward, "load_tile", ones_beyond, "odd_columns")


def test_a_column_that_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(sound: Any) -> Broken:
        def mask(rows: Any, count: Any, columns: Any, width: Any, whole: Any) -> Any:
            return sound(rows, count, columns, width, whole) & (columns < 63)[None, :]

        return mask

    breaks(monkeypatch, backward, "tile_mask", narrow, "plain")


def test_strides_that_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_if_dense(sound: Any) -> Broken:
        return lambda rows, dims, strides: sound(rows, (), (strides[-1],))

    breaks(
        monkeypatch, numerics, "row_offsets", as_if_dense, "plain_fp32", which=contract.check_layout, layout="permuted"
    )


def test_a_sum_that_is_normalised_before_it_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    check_rounded_sum(SEED)

    def unrounded(x: Any, residual: Any, sum_ptr: Any) -> Any:
        return x if residual is None else x.to(tl.float32) + residual.to(tl.float32)

    monkeypatch.setattr(forward, "add_residual", unrounded)
    forget_plans()
    with pytest.raises(AssertionError):
        check_rounded_sum(SEED)


def test_an_eps_that_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_eps(sound: Any) -> Broken:
        def program(*args: Any) -> Any:
            planned = sound(*args)
            launches = [replace(launch, scalars={**launch.scalars, "eps": 0.0}) for launch in planned.launches]
            return replace(planned, launches=tuple(launches))

        return program

    breaks(monkeypatch, launches, "forward", without_eps, "plain_fp32")


def test_a_partial_sum_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW_TILES", 0)
    monkeypatch.setattr(plan, "backward", smaller(plan.backward, {"rows": 2, "programs": 3}))

    def one_less(sound: Any) -> Broken:
        return lambda partial, out, rows, *rest: sound(partial, out, rows - 1, *rest)

    breaks(monkeypatch, launches, "sum_rows_launch", one_less, "plain_fp32")


def test_a_tile_that_depends_on_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rows(sound: Any) -> Broken:
        def tile(spec: Any, *args: Any) -> Any:
            return replace(sound(spec, *args), columns=32 if spec.rows > 5 else 16)

        return tile

    monkeypatch.setattr(plan, "WHOLE_FORWARD", (8, 8))
    monkeypatch.setattr(plan, "forward", smaller(plan.forward, {"columns": 16}))
    breaks(monkeypatch, plan, "forward", by_rows, "plain_fp32", which=contract.check_batch_invariance)
