"""The Hopper kernels of one query over a cache, in Python: the bits of `forward` in any order of warps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from checks.interpreter import interpreted
from gluon_in_python import emulated

import retrograd
from ops.attention.structures import STRUCTURES, forced
from retrograd.ops.attention import torch_step
from retrograd.ops.infos import info

ON_HOPPER = info("attention").variant(only="hopper")


class Call(NamedTuple):
    """A call: heads of queries and of keys, columns, the capacity of a row, the slots that each row has then used."""

    heads: int
    groups: int
    size: int
    capacity: int
    used: tuple[int, ...]
    value_size: int | None = None
    options: Mapping[str, Any] = MappingProxyType({})


# Blocks have 128 keys, those of wider heads 64.
CALLS = {
    "causal": Call(2, 2, 64, 270, (1, 128, 129, 270)),
    "narrow": Call(2, 1, 32, 270, (129, 270)),
    "groups": Call(4, 1, 64, 257, (257, 2)),
    "more heads than a tile in shared memory has at least": Call(12, 1, 64, 140, (140, 3)),
    "window": Call(2, 1, 64, 400, (400, 128, 131, 5), options={"window": (130, 0)}),
    "short window": Call(2, 1, 64, 270, (256, 257), options={"window": (0, 0)}),
    "softcap": Call(2, 1, 128, 150, (150, 128), options={"softcap": 2.0, "scale": 0.4}),
    "odd sizes": Call(2, 1, 80, 140, (140, 1), 72),
    "wider keys": Call(4, 1, 192, 140, (140, 64, 65), 128),
    "wider": Call(1, 1, 256, 140, (129, 1), 256),
}


def drawn(call: Call, seed: int) -> tuple[torch.Tensor, ...]:
    """Whole sequences: q, k and v."""
    torch.manual_seed(seed)
    shapes = (call.heads, call.size), (call.groups, call.size), (call.groups, call.value_size or call.size)
    return tuple(torch.randn(len(call.used), call.capacity, *shape).half() for shape in shapes)


def steps(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, fill: float) -> torch.Tensor:
    """The results of the step after which the rows have used so many slots; the others have an arbitrary value."""
    cache_k, cache_v = torch.full_like(k, fill), torch.full_like(v, fill)
    last = torch.tensor(call.used) - 1
    for row, before in enumerate(last.tolist()):
        cache_k[row, :before], cache_v[row, :before] = k[row, :before], v[row, :before]
    own_q, own_k, own_v = (x[torch.arange(len(last)), last] for x in (q, k, v))
    return retrograd.attention_step_(own_q, own_k, own_v, cache_k, cache_v, last.int(), **call.options)[0]


@pytest.fixture(params=STRUCTURES)
def structure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The structure by which all steps of a test run, and none by the kernels of `attention`."""
    monkeypatch.setattr(torch_step, "_attention", None)
    with forced(request.param):
        yield request.param


@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_a_step_has_the_bits_of_the_sequence_in_any_order(name: str, structure: str, seed: int) -> None:
    call = CALLS[name]
    q, k, v = drawn(call, seed)
    with interpreted("sm_90"), emulated(seed):
        expected = ON_HOPPER.torch(q, k, v, causal=True, **call.options)
        found = steps(call, q, k, v, torch.nan)
    for row, used in enumerate(call.used):
        assert torch.equal(found[row], expected[row, used - 1]), (structure, used)


@torch.no_grad()
def test_another_order_gives_the_same_bits_and_a_row_without_room_is_nan(structure: str, seed: int) -> None:
    call = CALLS["window"]
    q, k, v = drawn(call, seed)
    found = []
    for order in range(2):
        with interpreted("sm_90"), emulated(seed + order):
            found.append(steps(call, q, k, v, 3.0 + order))
            full = torch.tensor([400, 401, 3, 4], dtype=torch.int32)
            nan = retrograd.attention_step_(q[:, 0], k[:, 0], v[:, 0], k.clone(), v.clone(), full)[0]
    assert torch.equal(*found)
    assert nan[:2].isnan().all()
    assert not nan[2:].isnan().any()


@torch.no_grad()
def test_the_structures_give_the_same_bits_on_a_long_cache(seed: int) -> None:
    call = Call(2, 1, 64, 2**14, (8449, 1, 300))  # more blocks than `exponentials` reads the largest scores of at once
    q, k, v = drawn(call, seed)
    found = []
    for name in ("walk", None):
        with interpreted("sm_90"), emulated(seed), forced(name):
            found.append(steps(call, q, k, v, torch.nan))
    assert torch.equal(*found)
