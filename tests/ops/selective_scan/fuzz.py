"""Good calls of selective_scan and of its generation step."""

from __future__ import annotations

from dataclasses import replace

from fuzz.sizes import FLAG, KERNEL_FLOATS, bounds, doubled, flags, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case, Tensor
from retrograd.ops.selective_scan.cases import MAMBA, case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """B and C in each of their forms, real and complex states, packed sequences, every optional argument."""
    double = draw(FLAG) and draw(FLAG)
    dtype = "float32" if double else draw(KERNEL_FLOATS)
    B, T, D, N = draw(size(3)), draw(size(40)), draw(size(6)), draw(st.integers(1, 5))
    where = draw(st.none() | bounds(T))
    groups = st.none() | st.sampled_from([g for g in range(1, max(D, 1) + 1) if D % g == 0])
    drawn = case(
        "fuzzed",
        (B if where is None else 1, T, D, N),
        dtype=dtype,
        matrix_dtype=draw(st.sampled_from(("float32", dtype))),
        given=draw(st.sets(st.sampled_from(sorted(MAMBA)))),
        groups=(draw(groups), draw(groups)),
        constant=draw(st.sampled_from(("", "", "B", "C", "BC"))),
        is_complex=draw(FLAG) and draw(FLAG),
        initial_state=draw(FLAG),
        cu_seqlens=where,
        **draw(flags("return_final_state")),
    )
    return doubled(drawn) if double else drawn


def update(case: Case) -> Case:
    """`selective_state_update` with the arrays of a case at a step."""
    x, A = case.inputs["x"], case.inputs["A"]

    def at_a_step(name: str, tensor: Tensor) -> Tensor:
        shape = (x.shape[0], *tensor.shape[2:])
        if name in ("B", "C") and len(tensor.shape) == 2:
            shape = (x.shape[0], A.shape[1])
        return tensor if name in ("A", "D", "dt_bias") else replace(tensor, shape=shape)

    names = [name for name in ("x", "dt", "A", "B", "C", "D", "z", "dt_bias") if name in case.inputs]
    inputs = {"state": Tensor((x.shape[0], *A.shape), A.dtype)}
    inputs |= {name: at_a_step(name, case.inputs[name]) for name in names}
    return Case("selective_state_update", inputs, {"dt_softplus": case.options.get("dt_softplus", False)})
