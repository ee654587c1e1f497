"""Good calls of linear."""

from __future__ import annotations

from fuzz.sizes import FLAG, KERNEL_FLOATS, doubled, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case
from retrograd.ops.linear.cases import case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases with any number of axes before the inputs, with and without a bias."""
    double = draw(FLAG) and draw(FLAG)
    batch = tuple(draw(st.lists(size(6), max_size=3)))
    dtype = "float32" if double else draw(KERNEL_FLOATS)
    drawn = case("fuzzed", batch, draw(size(20)), draw(size(40)), dtype, bias=draw(FLAG))
    return doubled(drawn) if double else drawn
