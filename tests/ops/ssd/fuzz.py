"""Good calls of ssd and of its generation step."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from fuzz.sizes import FLAG, KERNEL_FLOATS, bounds, doubled, flags, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case, Tensor
from retrograd.ops.ssd import reference
from retrograd.ops.ssd.cases import MAMBA, case

in_float32 = reference.plain  # by blocks of steps: differences of sums of log decays round more than their terms
# Limits around delta, which is about 0.1 without softplus and 0.05 with it: none, within, below, above.
LIMITS = st.sampled_from((None, (0.0, inf), (0.03, 0.11), (0.05, 0.05), (-1, 1), (1.0, 2.0), (-inf, 1e-3)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Groups of heads, limits of step sizes, packed sequences, every optional argument."""
    double = draw(FLAG) and draw(FLAG)
    dtype = "float32" if double else draw(KERNEL_FLOATS)
    B, T, H = draw(size(3)), draw(size(40)), draw(size(6))
    P, N = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    where = draw(st.none() | bounds(T))
    groups = draw(st.sampled_from([g for g in range(1, max(H, 1) + 1) if H % g == 0]))
    limit = draw(LIMITS)
    limits: dict[str, Any] = {} if limit is None else {"dt_limit": limit}
    drawn = case(
        "fuzzed",
        (B if where is None else 1, T, H, P, groups, N),
        dtype=dtype,
        matrix_dtype=draw(st.sampled_from(("float32", dtype))),
        dt_dtype=draw(st.sampled_from(("float32", dtype))),
        given=draw(st.sets(st.sampled_from(sorted(MAMBA | {"z"})))),
        wide_D=draw(FLAG),
        initial_state=draw(FLAG),
        cu_seqlens=where,
        # The gradient of A sums terms that cancel, in a wider dtype than the call's: float64 has none, so strong decays
        # leave it fewer digits.
        decay=draw(st.sampled_from((0.0, 0.0, -5.0) if double else (0.0, 0.0, 5.0, -5.0))),
        **draw(flags("return_final_state")),
        **limits,
    )
    return doubled(drawn) if double else drawn


def update(case: Case) -> Case:
    """`ssd_update` with the arrays of a case at a step."""
    x, B = case.inputs["x"], case.inputs["B"]
    batch, _, heads, P = x.shape
    inputs = {"state": Tensor((batch, heads, P, B.shape[3]), case.inputs["A"].dtype)}
    for name in ("x", "dt", "A", "B", "C", "D", "z", "dt_bias"):
        if name in case.inputs:
            tensor = case.inputs[name]
            whole = name in ("A", "D", "dt_bias")
            inputs[name] = tensor if whole else replace(tensor, shape=(batch, *tensor.shape[2:]))
    return Case("ssd_update", inputs, {n: v for n, v in case.options.items() if n != "return_final_state"})
