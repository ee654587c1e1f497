"""Good calls of linear_scan."""

from __future__ import annotations

from fuzz.sizes import FLAG, KERNEL_FLOATS, bounds, doubled, flags, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case
from retrograd.ops.linear_scan.cases import case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases with decays shared by rows or channels, real and complex, states, packed sequences, both directions."""
    double = draw(FLAG) and draw(FLAG)
    dtype = draw(st.sampled_from(("float32", "complex64")) if double else KERNEL_FLOATS | st.just("complex64"))
    is_complex = dtype == "complex64"
    states: tuple[str | bool, ...] = (False, "complex64" if is_complex else "float32", dtype)
    B, T, D = draw(size(4)), draw(size(40)), draw(size(9))
    where = draw(st.none() | bounds(T))
    B = B if where is None else 1
    drawn = case(
        "fuzzed",
        (B, T, D),
        dtype=dtype,
        a=(draw(st.sampled_from((B, 1))), T, draw(st.sampled_from((D, 1)))),
        a_dtype=dtype if is_complex or double else draw(KERNEL_FLOATS),
        initial=draw(st.sampled_from(states)),
        packed=where,
        **draw(flags("reverse", "return_final_state")),
    )
    return doubled(drawn) if double else drawn
