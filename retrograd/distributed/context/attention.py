"""Attention: each process gets all steps of some heads, or all keys and values for its own queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.op import Op
from retrograd.core.torch.context import Results

from .collectives import gathered, heads_of_all, steps_of_all

if TYPE_CHECKING:
    from .parallel import ContextParallel

REFUSED = ("bias", "dropout_seed", "segment_ids")  # they are of all steps or heads


def attention(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """`attention` over the steps of all processes, by heads where these can be divided."""
    for name in REFUSED:
        if arrays[name] is not None:
            raise bad_value(op.name, name, "given", "None beside a context")
    layout, k, v = context.layout, arrays["k"], arrays["v"]
    for name, array in (("k", k), ("v", v)):
        if array.ndim != 4 or array.shape[1] != len(layout.own):
            raise bad_shape(op.name, name, array.shape, f"{len(layout.own)} steps, as q: keys are those of the queries")
    heads, groups, world = arrays["q"].shape[2], k.shape[2], layout.world
    if groups % world == 0:
        return by_heads(context, run, arrays, settings)
    if context.order == "global":
        expected = f"a multiple of {world}, or a context whose order is 'ranks'"
        raise bad_value(op.name, "k's number of heads", groups, expected)
    if groups and world % groups == 0 and heads % world == 0:
        return by_heads(context, run, with_key_heads(arrays, world // groups), settings)
    return by_keys(context, op, run, arrays, settings)


def with_key_heads(arrays: dict[str, Any], times: int) -> dict[str, Any]:
    """The arrays with every key head so often, for as many processes; its gradient is the sum of theirs."""
    return {**arrays, **{name: arrays[name].repeat_interleave(times, dim=2) for name in ("k", "v")}}


def by_heads(
    context: ContextParallel, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """Each process computes all steps of a W-th of the heads, as one process would.

    Every pair of a query and a key is computed once, masks divide the work equally, and results and gradients have the
    bits of one process.
    """
    layout, group = context.layout, context.group
    world, rank = layout.world, layout.rank
    q, k, v = heads_of_all(layout, group, arrays["q"], arrays["k"], arrays["v"])
    own = {**arrays, "q": q, "k": k, "v": v}
    for name in ("alibi_slopes", "sinks"):
        if (of_heads := arrays[name]) is not None:
            own[name] = of_heads.chunk(world, dim=-1)[rank]
    if layout.bounds is not None:
        own["cu_seqlens_q"] = own["cu_seqlens_k"] = context.boundaries(q.device, layout.bounds)
    out, lse = run(own, settings)
    assert out is not None
    (out,) = steps_of_all(layout, group, out)
    if not settings["return_lse"]:
        return out, None
    assert lse is not None
    (lse,) = steps_of_all(layout, group, lse.transpose(1, 2))
    return out, lse.transpose(1, 2)


def by_keys(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """Each process computes its own queries, with the keys and values of all.

    A process has whole sequences of keys, up to its last query where later ones are not seen.
    """
    layout, causal = context.layout, settings["causal"]
    if not causal and (settings["window"] is not None or arrays["alibi_slopes"] is not None):
        name = "window" if settings["window"] is not None else "alibi_slopes"
        raise bad_value(op.name, name, "given", "None without causal, since keys end behind the queries")
    keys, values = (gathered(arrays[name], layout.sizes, 1, context.group) for name in ("k", "v"))
    sequences, pieces, start = layout.sequences, layout.pieces, layout.own.start
    own = dict(arrays)
    if layout.bounds is None:
        seen = slice(0, layout.own.stop if causal else layout.time)
    elif pieces:
        first, last = pieces[0].sequence, pieces[-1].sequence
        stops = [sequences[number + 1] for number in range(first, last + 1)]
        if causal:
            stops[-1] = start + pieces[-1].end
        seen = slice(sequences[first], stops[-1])
        own["cu_seqlens_k"] = context.boundaries(keys.device, (0, *(stop - seen.start for stop in stops)))
    else:
        seen = slice(0, 0)
        own["cu_seqlens_k"] = context.boundaries(keys.device, (0, 0))
    if layout.bounds is not None:
        own["cu_seqlens_q"] = context.boundaries(keys.device)
        if (slopes := arrays["alibi_slopes"]) is not None and slopes.ndim == 2 and pieces:
            own["alibi_slopes"] = slopes[pieces[0].sequence : pieces[-1].sequence + 1]
    out, lse = run({**own, "k": keys[:, seen], "v": values[:, seen]}, settings)
    return out, lse
