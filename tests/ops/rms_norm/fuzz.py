"""Good calls of rms_norm."""

from __future__ import annotations

from fuzz.sizes import FLAG, KERNEL_FLOATS, doubled, flags, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case
from retrograd.ops.rms_norm.cases import case
from retrograd.ops.rms_norm.op import ACTIVATIONS


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases with any number of dimensions, each optional argument present or absent."""
    double = draw(FLAG) and draw(FLAG)
    floats = st.just("float32") if double else KERNEL_FLOATS
    shape = (*draw(st.lists(size(4), max_size=3)), draw(st.sampled_from((1, 2, 3, 8, 12, 33, 0))))
    dtype = draw(floats)
    weights = [None, shape[-1:], *([shape[-2:]] if len(shape) > 1 else [])]
    weight = draw(st.sampled_from(weights))
    options = draw(flags("norm_before_gate", "prenorm"))
    if weight:
        options["weight_offset"] = draw(st.sampled_from((0.0, 1.0, -0.5)))
    if weight is None or len(weight) == 1:
        divisors = [n for n in range(1, max(shape[-1], 4) + 1) if shape[-1] % n == 0]
        options["group_size"] = draw(st.sampled_from((None, *divisors)))
    # A single column is divided by its own size, so its gradient is nearly zero.
    alone = (options.get("group_size") or shape[-1]) == 1
    options["eps"] = draw(st.sampled_from((0.5, 1) if alone else (1e-6, 1e-5, 0.1, 1)))
    options["out_dtype"] = draw(st.none() | floats)
    gate = draw(st.none() | floats)
    if gate:
        options["gate_activation"] = draw(st.sampled_from(ACTIVATIONS))
    drawn = case(
        "fuzzed",
        shape,
        dtype=dtype,
        weight=weight,
        weight_dtype=draw(st.sampled_from(("float32", dtype))),
        bias=draw(FLAG),
        residual=draw(st.none() | floats),
        gate=gate,
        **options,
    )
    return doubled(drawn) if double else drawn
