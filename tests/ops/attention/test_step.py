"""`attention_step_`: steps over caches have the bits of `attention` on the whole sequence, rows at any position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import retrograd
from ops.attention.structures import STRUCTURES, forced
from retrograd.core.torch.rotary import rotated
from retrograd.ops.attention.hopper.query.plan import LONG

CAPACITY = 150
HEADS, GROUPS, STEPS = 6, 2, (0, 70, 127)  # steps before the first one tried
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "half of the channels rotated": {"pairs": 16},
    "interleaved": {"pairs": 32, "interleaved": True},
    "window and softcap": {"window": (40, 0), "softcap": 5.0, "pairs": 32},
    "wide": {"size": 128, "pairs": 20, "scale": 0.3, "dtype": torch.float16},
    "narrow": {"size": 24, "pairs": 12, "dtype": torch.float32},
}
SHAPES: dict[str, dict[str, Any]] = {
    "64": {"pairs": 32},
    "128, window and softcap": {"size": 128, "window": (100, 0), "softcap": 5.0},
    "192 and 128": {"size": 192, "value_size": 128},
    "256": {"size": 256, "dtype": torch.float16},
}
# Hopper's own kernels for a step.
ON_HOPPER = {
    f"{structure}: {name}": {"structure": structure, **how} for structure in STRUCTURES for name, how in SHAPES.items()
}
ON_HOPPER |= {
    "long": {"size": 128, "pairs": 64, "capacity": LONG + 40},
    "long, softcap and float16": {"softcap": 5.0, "dtype": torch.float16, "capacity": LONG + 40},
}
EACH = [
    *((name, "cpu") for name in CALLS),
    *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in (CALLS | ON_HOPPER)),
]


def tables(pairs: int, capacity: int, device: str) -> dict[str, Any]:
    angle = torch.arange(capacity)[:, None] * 10.0 ** -torch.linspace(0, 4, pairs)
    return {"cos": angle.cos().to(device), "sin": angle.sin().to(device)} if pairs else {}


@pytest.mark.parametrize(("name", "device"), EACH)
@torch.no_grad()
def test_steps_have_the_bits_of_the_whole_sequence(name: str, device: str) -> None:
    how = dict((CALLS | ON_HOPPER)[name])
    with forced(how.pop("structure", None)):
        check_steps(how, device)


def check_steps(how: dict[str, Any], device: str) -> None:
    size, dtype, capacity = how.pop("size", 64), how.pop("dtype", torch.bfloat16), how.pop("capacity", CAPACITY)
    turned, interleaved = tables(how.pop("pairs", 0), capacity, device), how.pop("interleaved", False)
    generator = torch.Generator().manual_seed(0)
    shapes = (HEADS, size), (GROUPS, size), (GROUPS, how.pop("value_size", size))
    q, k, v = (torch.randn(3, capacity, *shape, generator=generator).to(device, dtype) for shape in shapes)
    rotated_q, rotated_k = q, k
    if turned:
        rotated_q, rotated_k = (rotated(x, turned["cos"][:, None], turned["sin"][:, None], interleaved) for x in (q, k))
    expected = retrograd.attention(rotated_q, rotated_k, v, causal=True, **how)
    cache_k, cache_v = torch.zeros_like(k), torch.zeros_like(v)
    first = [before if capacity == CAPACITY else capacity - CAPACITY + before for before in STEPS]
    first[0] = 0
    for row, before in enumerate(first):
        cache_k[row, :before], cache_v[row, :before] = rotated_k[row, :before], v[row, :before]
    steps = torch.tensor(first, dtype=torch.int32, device=device)
    for after in range(4):
        now = [row_steps + after for row_steps in first]
        own_q, own_k, own_v = (torch.stack([x[row, t] for row, t in enumerate(now)]) for x in (q, k, v))
        out, steps = retrograd.attention_step_(
            own_q, own_k, own_v, cache_k, cache_v, steps, **turned, interleaved=interleaved, **how
        )
        assert torch.equal(out, torch.stack([expected[row, t] for row, t in enumerate(now)])), after
    assert steps.tolist() == [row_steps + 4 for row_steps in first]
    for row, before in enumerate(first):
        assert torch.equal(cache_k[row, : before + 4], rotated_k[row, : before + 4])
        assert not cache_v[row, before + 4 :].any()


def arguments(**changed: Any) -> dict[str, Any]:
    given = {"q": (2, 4, 8), "k": (2, 2, 8), "v": (2, 2, 8), "cache_k": (2, 5, 2, 8), "cache_v": (2, 5, 2, 8)}
    tensors: dict[str, Any] = {name: torch.randn(shape) for name, shape in given.items()}
    return tensors | {"steps": torch.tensor([0, 4], dtype=torch.int32)} | changed


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"steps": torch.tensor([0, 5], dtype=torch.int32)}, ValueError, "steps is 5, expected less than the capacity"),
        ({"steps": torch.tensor([0, 4])}, TypeError, "steps has dtype int64, expected int32"),
        ({"cache_v": torch.randn(2, 6, 2, 8)}, ValueError, r"cache_v has shape \(2, 6, 2, 8\), expected .*capacity=5"),
        ({"cache_k": torch.randn(2, 2, 5, 8).transpose(1, 2)}, ValueError, r"cache_k.stride\(\) is"),
        ({"cos": torch.ones(5, 2)}, ValueError, "sin is None, expected an array, since cos is given"),
        ({"cos": torch.ones(5, 5), "sin": torch.ones(5, 5)}, ValueError, r"cos has shape .*at most 4 pairs"),
        ({"cos": torch.ones(4, 2), "sin": torch.ones(4, 2)}, ValueError, r"cos has shape \(4, 2\), expected"),
        ({"q": torch.randn(2, 4, 8, requires_grad=True)}, ValueError, "requires_grad is True, expected False, or a"),
        ({"k": torch.randn(2, 3, 8)}, ValueError, "k"),
        ({"scale": float("nan")}, ValueError, "scale is nan"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changed: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^attention_step_: {says}"):
        retrograd.attention_step_(**arguments(**changed))


@pytest.mark.gpu
def test_a_row_without_room_is_nan_and_the_others_are_not() -> None:
    given = {name: tensor.cuda().bfloat16() for name, tensor in arguments().items() if name != "steps"}
    steps = torch.tensor([1, 5], dtype=torch.int32, device="cuda")
    for _ in range(2):
        out, steps = retrograd.attention_step_(**given, steps=steps)
        assert not out[0].isnan().any()
        assert out[1].isnan().all()
