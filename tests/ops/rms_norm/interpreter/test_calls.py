"""The kernels in every combination of dtypes, shapes and options."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

from checks import contract
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops.rms_norm.calls import COLUMNS, calls
from retrograd.opinfo.cases import Case
from retrograd.ops.rms_norm.info import INFO

# float16 replaces bfloat16, which the interpreter truncates.
KERNELS = ("float32", "float16")
PATIENT = settings(
    max_examples=2, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@PATIENT
@given(calls(KERNELS, COLUMNS[1:]), st.integers(0, 10**6))
def test_any_call_keeps_the_error_budget_and_its_rows_apart(case: Case, seed: int) -> None:
    contract.check_errors(INFO, case, "cpu", seed)
    contract.check_batch_invariance(INFO, case, "cpu", seed)
