"""Every combination of dtypes, shapes and options keeps the contract."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

from checks import contract, integration
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.rms_norm.calls import calls
from retrograd.opinfo.cases import Case
from retrograd.ops.rms_norm.info import INFO

DTYPES = ("float32", "bfloat16", "float16")


@settings(max_examples=20, deadline=None, database=None)
@given(calls(DTYPES), st.integers(0, 10**6))
def test_any_call_keeps_the_error_budget_and_its_rows_apart(case: Case, seed: int) -> None:
    contract.check_errors(INFO, case, "cpu", seed)
    contract.check_batch_invariance(INFO, case, "cpu", seed)
    integration.check_operator(INFO, case, "cpu", seed)
