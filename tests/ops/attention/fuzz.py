"""Good calls of attention."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

from fuzz.sizes import FLAG, KERNEL_FLOATS, bounds, doubled, flags, size
from hypothesis import strategies as st

from retrograd.opinfo.cases import Case
from retrograd.ops.attention import reference
from retrograd.ops.attention.cases import case

in_float32 = reference.plain  # with the rounding of the saved result
SIDE = st.sampled_from((-1, 0, 1, 5, 100))


@st.composite
def ids_of_row(draw: st.DrawFn, steps: int) -> tuple[int, ...]:
    """Ids of steps in a few runs; those of negative ids are of no sequence."""
    cuts = draw(bounds(steps))
    labels = [draw(st.integers(-1, 2)) for _ in range(len(cuts) + 1)]
    return tuple(labels[bisect_right(cuts, step)] for step in range(steps))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Groups of heads, other sizes of values, every mask and option, packed sequences, more and fewer keys."""
    double = draw(FLAG) and draw(FLAG)
    dtype = "float32" if double else draw(KERNEL_FLOATS)
    B, Q, K, G = draw(size(3)), draw(size(80)), draw(size(80)), draw(st.integers(1, 2))
    D, V = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    H = G * draw(st.integers(1, 3))
    packed = draw(st.none() | bounds(Q))
    more: dict[str, Any] = {}
    if packed is not None:
        B = 1
        ends = draw(st.lists(st.integers(0, K), min_size=len(packed), max_size=len(packed)))
        more["packed"] = (packed, tuple(sorted(ends)))
    if packed is None and B and Q and draw(FLAG) and draw(FLAG):
        K = Q
        more["segments"] = tuple(draw(ids_of_row(Q)) for _ in range(B))
    sequences = B if packed is None else len(packed) - 1
    sinks, lse = draw(FLAG), draw(FLAG)
    if draw(FLAG):
        # What all keys share changes neither p nor out: without a sink or lse, its gradient is what rounding leaves.
        shares = (*((1, n) for n in (B, H, Q)), (1, K) if sinks or lse else (K,))
        more["bias"] = tuple(draw(st.sampled_from(sizes)) for sizes in shares)
        more["bias_dtype"] = draw(st.sampled_from(("float32", dtype)))
    if draw(FLAG):
        more["window"] = (draw(SIDE), draw(SIDE))
    if draw(FLAG):
        more["softcap"] = draw(st.sampled_from((0.5, 3.0)))
    if draw(FLAG):
        more["scale"] = draw(st.sampled_from((0.1, 1.0, 0.0, -0.3)))
    if K > 7 and packed is None and draw(FLAG):  # with one key, the gradients at scores are what rounding leaves
        more |= {"seed": draw(st.integers(0, 127)), "dropout_p": draw(st.sampled_from((0.1, 0.5)))}
    drawn = case(
        "fuzzed",
        (B, Q, K, H, G, D),
        value=V,
        dtype=dtype,
        slopes=draw(st.sampled_from((None, (H,), (H,) if "segments" in more else (sequences, H)))),
        sinks=sinks,
        return_lse=lse,
        **draw(flags("causal")),
        **more,
    )
    return replace(doubled(drawn), shared=drawn.shared) if double else drawn
