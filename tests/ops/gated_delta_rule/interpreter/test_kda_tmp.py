import sys
import pytest
from checks import contract
from checks.interpreter import interpreted
from gluon_in_python import emulated
from retrograd.ops.gated_delta_rule.cases import ALL, case
from retrograd.ops.gated_delta_rule.info import INFO
F16 = {"dtype": "float16", "wide_dtype": "float32", "of_channels": True}
CASES = {
    "one": case("one", (1, 64, 1, 1, 128, 128), **F16),
    "rows": case("rows", (2, 150, 1, 2, 128, 128), **F16, **ALL),
    "packed": case("packed", (1, 330, 1, 2, 128, 128), cu_seqlens=(3, 3, 140, 141, 269, 325), **F16, **ALL),
    "strong": case("strong decay", (1, 150, 1, 1, 128, 128), decay=3.0, **F16, **ALL),
}
@pytest.mark.parametrize("name", list(CASES))
def test_it(name):
    with interpreted("sm_90"), emulated(3):
        contract.check_errors(INFO, CASES[name], "cpu", 1, most_draws=1)
