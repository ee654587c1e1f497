"""A hypothesis strategy for calls of rms_norm: any valid combination of dtypes, shapes and options."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from retrograd.opinfo.cases import Case
from retrograd.ops.rms_norm.cases import case
from retrograd.ops.rms_norm.op import ACTIVATIONS

LEADS = [(4,), (2, 3), (1,), (3, 2, 4), (1, 1, 5)]
COLUMNS = (1, 8, 12, 33, 48)


@st.composite
def calls(draw: st.DrawFn, dtypes: tuple[str, ...], columns: tuple[int, ...] = COLUMNS) -> Case:
    """A case; its eps is large enough that a norm over one column is well conditioned."""
    dtype = draw(st.sampled_from(dtypes))
    shape = (*draw(st.sampled_from(LEADS)), draw(st.sampled_from(columns)))
    weights: list[Any] = [None, True, *([shape[-2:]] if len(shape) > 2 else [])]
    weight = draw(st.sampled_from(weights))
    options: dict[str, Any] = {"eps": 0.1}
    if not isinstance(weight, tuple):
        divisors = [size for size in range(1, shape[-1] + 1) if shape[-1] % size == 0]
        options["group_size"] = draw(st.sampled_from([None, *divisors]))
    if weight:
        options["weight_offset"] = draw(st.sampled_from([0.0, 1.0]))
    gate = draw(st.sampled_from([None, *dtypes]))
    if gate:
        options["gate_activation"] = draw(st.sampled_from(ACTIVATIONS))
    return case(
        "drawn",
        shape,
        dtype=dtype,
        weight=weight,
        weight_dtype=draw(st.sampled_from(["float32", dtype])),
        bias=draw(st.booleans()),
        residual=draw(st.sampled_from([None, "float32", dtype])),
        gate=gate,
        norm_before_gate=draw(st.booleans()),
        prenorm=draw(st.booleans()),
        out_dtype=draw(st.sampled_from([None, *dtypes])),
        **options,
    )
