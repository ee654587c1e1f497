"""Good calls of causal_conv1d and of its generation step."""

from __future__ import annotations

from fuzz.sizes import FLAG, KERNEL_FLOATS, bounds, doubled, flags, packed, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case, Tensor
from retrograd.ops.causal_conv1d.cases import case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases with widths with and without kernels, states and packed sequences."""
    double = draw(FLAG) and draw(FLAG)
    dtype = "float32" if double else draw(KERNEL_FLOATS)
    B, T, D = draw(size(4)), draw(size(20)), draw(size(9))
    where = draw(st.none() | bounds(T))
    drawn = case(
        "fuzzed",
        (B if where is None else 1, T, D),
        draw(st.sampled_from((4, 3, 2, 1, 7))),
        dtype=dtype,
        weight_dtype=draw(st.sampled_from(("float32", dtype))),
        bias=draw(FLAG),
        initial=draw(FLAG),
        lengths=None if where is None else (0,) * (len(where) - 1),
        activation=draw(st.sampled_from((None, "silu"))),
        **draw(flags("return_final_state")),
    )
    drawn = drawn if where is None else packed(drawn, where)
    return doubled(drawn) if double else drawn


def update(case: Case) -> Case:
    """`causal_conv1d_update` with the arrays of a case."""
    x, weight = case.inputs["x"], case.inputs["weight"]
    state = Tensor((x.shape[0], x.shape[2], weight.shape[1] - 1), x.dtype)
    bias = {"bias": case.inputs["bias"]} if "bias" in case.inputs else {}
    options = {"activation": case.options["activation"]}
    return Case("causal_conv1d_update", {"x": x, "state": state, "weight": weight, **bias}, options)
