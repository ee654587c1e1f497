"""Ops on sequences that are divided over processes, against the same calls in one process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from processes import refused
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import retrograd
from retrograd.core.tree import tree_sum
from retrograd.distributed import ContextParallel, Layout
from retrograd.distributed.context import reach, steps
from retrograd.distributed.context.parallel import Order


class Sizes(NamedTuple):
    """Channels, heads and key heads, channels of a head, and states, in the dtype of activations."""

    channels: int
    heads: int
    groups: int
    size: int
    states: int
    dtype: torch.dtype


SIZES = {
    "cpu": Sizes(8, 8, 4, 8, 4, torch.float32),
    "cuda": Sizes(256, 8, 4, 64, 64, torch.bfloat16),  # which kernels take
}
TIME = 600
PACKED = (3, 10, 10, 330, 585, 585)
SHORT = 120  # with borders anywhere
SHORT_PACKED = (3, 10, 10, 70, 110, 110)


class Call(NamedTuple):
    """A call of an op: arrays with time as their second axis, arrays without, and options."""

    op: str
    steps: dict[str, Tensor]
    rest: dict[str, Tensor]
    options: dict[str, Any]


def calls(sequences: int, rows: int, device: str, order: str, time: int) -> Iterator[Call]:
    """Of every op; `sequences` is the number of states, `order` the context's."""

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape).to(device, dtype)

    def steps(*shape: int) -> Tensor:
        return drawn(rows, time, *shape, dtype=dtype)

    D, H, G, P, N, dtype = SIZES[device]
    scan = {"a": steps(D).sigmoid(), "b": steps(D)}
    start, keeps = {"initial_state": drawn(sequences, D)}, {"return_final_state": True}
    yield Call("linear_scan", scan, start, keeps)
    yield Call("linear_scan", scan, start, {"reverse": True, **keeps})
    yield Call("linear_scan", scan | {"a": scan["a"][:1]}, {}, {})
    yield Call("linear_scan", {name: x[..., :0] for name, x in scan.items()}, {}, {})
    if device == "cpu":
        complex_scan = {name: torch.complex(x, x.roll(1)) * 0.5 for name, x in scan.items()}
        yield Call("linear_scan", complex_scan, {}, keeps)
    x, silu = drawn(rows, time, D, dtype=torch.bfloat16), {"activation": "silu"}
    weights = {"weight": drawn(D, 4), "bias": drawn(D)}
    yield Call("causal_conv1d", {"x": x}, weights, silu)
    state = {"initial_state": drawn(sequences, D, 3, dtype=torch.bfloat16)}
    yield Call("causal_conv1d", {"x": x}, weights | state, silu | keeps)
    softplus = {"dt_softplus": True}
    yield Call(
        "selective_scan",
        {"x": steps(D), "dt": steps(D), "B": steps(16), "C": steps(16)},
        {"A": -drawn(D, 16).exp(), "D": drawn(D), "initial_state": drawn(sequences, D, 16)},
        softplus | keeps,
    )
    ssd = {"x": steps(H, P), "dt": steps(H), "B": steps(G, N), "C": steps(G, N)}
    parameters = {"A": -drawn(H).exp(), "D": drawn(H)}
    yield Call("ssd", ssd, parameters, softplus)
    yield Call("ssd", ssd, parameters | {"initial_state": drawn(sequences, H, P, N)}, softplus | keeps)
    heads = {"q": steps(H, P), "k": steps(G, P), "v": steps(G, P)}
    yield Call("attention", heads, {}, {"causal": True, "return_lse": True})
    of_heads = {"sinks": drawn(H), "alibi_slopes": drawn(H).exp()}
    window = {"causal": True, "window": (70, 0)}
    yield Call("attention", heads, of_heads, window)
    yield Call("attention", heads, {}, {})
    if order == "ranks":
        alone = heads | {"k": steps(1, P), "v": steps(1, P)}  # which several processes have
        yield Call("attention", alone, of_heads, {"causal": True, "return_lse": True})
        undivided = {"q": steps(6, P), "k": steps(3, P), "v": steps(3, P)}
        yield Call("attention", undivided, {}, {"causal": True, "return_lse": True})
        yield Call("attention", undivided, {name: x[:6] for name, x in of_heads.items()}, window)
        yield Call("attention", undivided, {}, {})


def found(
    call: Call, context: ContextParallel | None, bounds: tuple[int, ...] | None, recompute: bool = False
) -> dict[str, Tensor]:
    """Results and gradients: of all steps and sequences, or of the process's own steps.

    With `recompute` the backward pass computes the call again, by PyTorch's checkpoint.
    """
    whole = call.steps
    time = next(iter(whole.values())).shape[1]
    steps = whole if context is None else {name: context.shard(x) for name, x in whole.items()}
    arrays = {name: x.detach().clone().requires_grad_() for name, x in (steps | call.rest).items()}
    options = dict(call.options)
    if context is not None:
        options["context"] = context
    elif bounds is not None:
        cu_seqlens = torch.tensor(bounds, device=next(iter(whole.values())).device)
        taking = ("cu_seqlens_q", "cu_seqlens_k") if call.op == "attention" else ("cu_seqlens",)
        options |= dict.fromkeys(taking, cu_seqlens)
    op = partial(getattr(retrograd, call.op), **options)
    results = checkpoint(lambda: op(**arrays), use_reentrant=False) if recompute else op(**arrays)
    results = results if isinstance(results, tuple) else (results,)
    generator = torch.Generator().manual_seed(1)
    incoming = []
    for place, result in enumerate(results):
        # lse has time as its last axis; a final state is every process's, and its gradient the sum of all parts
        axis = 2 if call.op == "attention" and place else 1
        shape = list(result.shape)
        if call.op == "attention" or not place:
            shape[axis] = time
        drawn = torch.randn(shape, generator=generator, dtype=result.dtype).to(result.device)
        if context is not None and (call.op == "attention" or not place):
            drawn = context.shard(drawn, axis)
        elif context is not None:
            drawn = drawn * (dist.get_rank() == 0)
        incoming.append(drawn)
    gradients = torch.autograd.grad(results, list(arrays.values()), incoming)
    names = [f"result {place}" for place in range(len(results))]
    return dict(
        zip([*names, *(f"d{name}" for name in arrays)], [*(r.detach() for r in results), *gradients], strict=True)
    )


def differences(rank: int, world: int, device: str) -> list[str]:
    """What has other bits than in one process; of what all processes have, what is further away than rounding."""
    of_world = {
        2: {
            "even": (Layout.even(TIME, 2, 0).starts, None),
            "packed": (Layout.even(TIME, 2, 0, PACKED).starts, PACKED),
            "uneven": ((0, 512, TIME), None),
            "uneven packed": ((0, 266, TIME), PACKED),
        },
        4: {
            "packed": (Layout.even(TIME, 4, 0, PACKED).starts, PACKED),
            "uneven": ((0, 256, 256, 256, TIME), None),
        },
    }
    layouts = {name: Layout(starts, rank, bounds) for name, (starts, bounds) in of_world[world].items()}
    return [f"{name}: {what}" for name, layout in layouts.items() for what in compared(ContextParallel(layout), device)]


def compared(
    context: ContextParallel,
    device: str,
    close: bool = False,
    ops: Container[str] | None = None,
    rate: float = 1,
    silent: slice = slice(0),
    still: slice = slice(0),
) -> Iterator[str]:
    """The results and gradients that have other bits, or, if `close`, are further away than rounding.

    Of all ops, or some. States of selective_scan and ssd decay `rate` times as fast, nothing is added to them in
    `silent` steps, and they do not decay in `still` ones.
    """
    bounds = context.layout.bounds
    torch.manual_seed(0)
    sequences, rows = (2, 2) if bounds is None else (len(bounds) - 1, 1)
    for number, call in enumerate(calls(sequences, rows, device, context.order, context.layout.time)):
        if ops is not None and call.op not in ops:
            continue
        if "A" in call.rest:
            call.rest["A"].mul_(rate)
            call.steps["x"][:, silent] = 0
            call.steps["dt"][:, still] = -100
        whole, own = found(call, None, bounds), found(call, context, bounds)
        for name, expected in whole.items():
            of_steps = name[1:] in call.steps or name == "result 0" or (call.op == "attention" and name == "result 1")
            if of_steps:
                expected = context.shard(expected, 2 if name == "result 1" else 1)
            got = own[name]
            shared = name.startswith("d") and not of_steps
            if shared:  # the sum of all parts
                parts = [torch.empty_like(got) for _ in range(context.layout.world)]
                dist.all_gather(parts, got.contiguous())
                got = tree_sum(parts, torch.add)
            where = f"{number} {call.op} {name}"
            if shared or close or call.op == "linear_scan":  # of which parts are within the error budget only
                narrow = torch.bfloat16 in (got.dtype, next(iter(call.steps.values())).dtype)
                tolerance = 2e-2 if narrow else 2e-4
                near = tolerance * float(expected.abs().max()) if expected.numel() else 0.0
                if not torch.allclose(got, expected, rtol=tolerance, atol=near):
                    yield f"{where}: {(got - expected).abs().max().item()} off"
            elif not torch.equal(got, expected):
                yield f"{where}: other bits, {(got - expected).abs().max().item() if got.numel() else 0}"


SCANS = ("linear_scan", "selective_scan", "ssd")


def forgotten(rank: int, world: int, device: str) -> tuple[list[str], list[str]]:
    """Scans whose states reach a few steps back: what differs, and what was computed by one process after another."""
    context = ContextParallel(Layout.even(1300 * world, world, rank))
    packed = ContextParallel(Layout.even(1300 * world, world, rank, (5, 700, 1100, 1300 * world - 1)))
    with in_turn_noted() as noted:
        different = [*compared(context, device, ops=SCANS, rate=64), *compared(packed, device, ops=SCANS, rate=64)]
    return different, noted


def forgotten_too_early(rank: int, world: int, device: str) -> tuple[list[str], list[list[str]]]:
    """Scans whose states are looked for in 256 steps, where they may reach further: what differs, and what was in turn.

    States that hardly decay, that decay about as far as a rounding, that come of steps before 300 in which nothing was
    added, and whose gradients come of steps behind 300 in which they do not decay.
    """
    context = ContextParallel(Layout.even(1300 * world, world, rank))
    border = context.layout.starts[1]
    before, behind = slice(border - 300, border), slice(border, border + 300)
    ways: list[dict[str, Any]] = [{"rate": 1 / 64}, {"rate": 1 / 4}, {"silent": before}, {"rate": 64, "still": behind}]
    different: list[str] = []
    in_turn = []

    def taken(*given: Any) -> reach.Reach:
        link = given[-1]
        return reach.Reach(state=256 if link.exit else 0, gradient=256 if link.entry else 0)

    for way in ways:
        with pytest.MonkeyPatch.context() as patch, in_turn_noted() as noted:
            patch.setattr(reach, "measured", taken)
            different += compared(context, device, ops=("selective_scan", "ssd"), **way)
        in_turn.append(sorted(set(noted)))
    return different, in_turn


def remembered(rank: int, world: int, device: str) -> tuple[list[str], list[tuple[int, bool]]]:
    """Calls one after another in one context: what differs; how often each measured a reach, and if one was in turn.

    States of the third call reach further than before.
    """
    context = ContextParallel(Layout.even(1300 * world, world, rank))
    different: list[str] = []
    measured_and_in_turn = []
    for rate in (64, 64, 1 / 64, 64):
        count: list[str] = []
        with pytest.MonkeyPatch.context() as patch, in_turn_noted() as noted:
            patch.setattr(reach, "measured", noting(count, "measured", reach.measured))
            different += compared(context, device, ops=("selective_scan",), rate=rate)
        measured_and_in_turn.append((len(count), bool(noted)))
    return different, measured_and_in_turn


@contextmanager
def in_turn_noted() -> Iterator[list[str]]:
    """A list of the passes that one process after another computes."""
    noted: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("in_turn", "gradients_in_turn"):
            patch.setattr(steps._Steps, name, noting(noted, name, getattr(steps._Steps, name)))
        yield noted


def noting(noted: list[str], name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that notes its calls."""

    def call(*args: Any) -> Any:
        noted.append(name)
        return original(*args)

    return call


def recomputed(rank: int, world: int, device: str) -> list[str]:
    """What has other bits where PyTorch's checkpoint computes a call again: in turn, at once, and by summaries."""
    different = []
    ways: list[tuple[int, int, Order]] = [(TIME, 1, "global"), (1300 * world, 64, "global"), (TIME, 1, "ranks")]
    for time, rate, order in ways:
        context = ContextParallel(Layout.even(time, world, rank), order=order)
        torch.manual_seed(0)
        for number, call in enumerate(calls(2, 2, device, "global", time)):
            if call.op not in SCANS and (rate != 1 or order == "ranks"):
                continue
            if "A" in call.rest:
                call.rest["A"].mul_(rate)
            once, twice = found(call, context, None), found(call, context, None, recompute=True)
            different += [f"{number} {call.op} {name}" for name in once if not torch.equal(once[name], twice[name])]
    return different


def kept(rank: int, world: int, device: str) -> list[str]:
    """The calls after each of which more arrays live, since only Python's collector would free them."""
    keeping = []
    gc.freeze()  # what is there already is not looked at
    gc.disable()
    for time, rate in ((256 * world, 1), (1300 * world, 64)):  # in turn, and scans at once
        context = ContextParallel(Layout.even(time, world, rank))
        for number, call in enumerate(calls(2, 2, device, "global", time)):
            if rate != 1 and call.op not in SCANS:
                continue
            if "A" in call.rest:
                call.rest["A"].mul_(rate)
            alive = [0]
            for _ in range(8):  # a leak grows each time; threads that free late only sometimes
                found(call, context, None)
                alive.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))
                if alive[-1] <= alive[-2]:
                    break
            else:
                keeping.append(f"{number} {call.op}")
    gc.enable()
    gc.unfreeze()
    return keeping


def borders_anywhere(rank: int, world: int, device: str) -> list[str]:
    """With borders at any step, what is further away than rounding, and what was computed in turn."""
    starts = (0, 2, 3, 5, SHORT)
    several = (None, SHORT_PACKED, (0, 4, 4, SHORT))
    return [what for bounds in several for what in by_ranks(Layout(starts, rank, bounds), device)]


def by_ranks(layout: Layout, device: str) -> list[str]:
    """With the order of ranks, what is further away than rounding, and what was computed in turn."""
    context = ContextParallel(layout, order="ranks")
    with in_turn_noted() as noted:
        return [*(f"{layout.bounds}: {what}" for what in compared(context, device, close=True)), *noted]


def summed(rank: int, world: int, device: str) -> list[str]:
    """The same with equal parts."""
    return by_ranks(Layout.even(TIME, world, rank), device)


def refusals(rank: int, world: int, device: str) -> list[str]:
    """The messages of calls that do not fit."""
    context = ContextParallel(Layout.even(400, world, rank))
    packed = ContextParallel(Layout.even(400, world, rank, (0, 400)))
    own = len(context.layout.own)
    x, weight, q = torch.zeros(1, own, 8), torch.zeros(8, 4), torch.zeros(1, own, 3, 16)
    boundaries = torch.tensor([0, own])
    attempts = [
        lambda: ContextParallel(Layout((0, 128 * (rank + 1), 400), rank)),
        lambda: ContextParallel(Layout.even(400, world, 0)),
        lambda: ContextParallel(Layout.even(400, world + 1, rank)),
        lambda: ContextParallel(Layout.even(400, world, rank), order="any"),  # type: ignore[arg-type]
        lambda: ContextParallel(Layout((0, 257, 400), rank)),
        lambda: retrograd.causal_conv1d(x[:, 1:], weight, context=context),
        lambda: retrograd.causal_conv1d(x[:, rank:], weight, context=context),
        lambda: retrograd.linear_scan(x.expand(1 + rank, -1, -1), x.expand(1 + rank, -1, -1), context=context),
        lambda: retrograd.linear_scan(x, x, reverse=rank == 1, context=context),
        lambda: retrograd.causal_conv1d(x, weight, cu_seqlens=boundaries, context=context),
        lambda: retrograd.causal_conv1d(x.repeat(2, 1, 1), weight, context=packed),
        lambda: retrograd.linear_scan(x, x, initial_state=torch.zeros(2, 8), context=packed),
        lambda: retrograd.attention(q, q, q, context=context),
        lambda: retrograd.attention(q, q[:, 1:], q, context=context),
        lambda: retrograd.attention(q, q, q, bias=torch.zeros(1, 1, 1, 1), context=context),
        lambda: torch.func.vmap(lambda x: retrograd.linear_scan(x, x, context=context))(x[None]),
        lambda: torch.func.jvp(lambda x: retrograd.linear_scan(x, x, context=context), (x,), (x,)),
        lambda: context.shard(x[:, 1:]),
        lambda: context.unshard(x[:, 1:]),
    ]
    return refused(attempts)
