"""flash-attn's functions on `retrograd.attention`: each argument means what it means there, or is refused by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.compat import flash_attn
from retrograd.compat.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

BATCH, QUERIES, KEYS, HEADS, GROUPS, SIZE = 2, 9, 13, 4, 2, 8
ENDS_Q, ENDS_K = torch.tensor([0, 4, 4, 9], dtype=torch.int32), torch.tensor([0, 6, 8, 13], dtype=torch.int32)
# The arguments after the tensors, in flash-attn 2.8's order.
OPTIONS = [
    "dropout_p",
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "alibi_slopes",
    "deterministic",
    "return_attn_probs",
]
ORDER: dict[Callable[..., Any], list[str]] = {
    flash_attn_func: ["q", "k", "v", *OPTIONS],
    flash_attn_qkvpacked_func: ["qkv", *OPTIONS],
    flash_attn_kvpacked_func: ["q", "kv", *OPTIONS],
    flash_attn_varlen_func: [
        *["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"],
        *[*OPTIONS, "block_table"],
    ],
    flash_attn_varlen_qkvpacked_func: ["qkv", "cu_seqlens", "max_seqlen", *OPTIONS],
    flash_attn_varlen_kvpacked_func: [
        *["q", "kv", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"],
        *OPTIONS,
    ],
}
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
CHANGES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window_size": (3, 2)},
    {"window_size": (None, 1)},
    {"causal": True, "window_size": (3, 4)},
    {"softmax_scale": 0.1, "softcap": 2.0},
    {"alibi_slopes": SLOPES},
    {"alibi_slopes": torch.stack([SLOPES, SLOPES.flip(0)])},
    {"learnable_sink": SLOPES},
    {"deterministic": True, "num_splits": 3, "pack_gqa": True, "sm_margin": 2},
]


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def qkv_of(seed: int) -> list[Tensor]:
    return drawn(seed, (BATCH, QUERIES, HEADS, SIZE), (BATCH, KEYS, GROUPS, SIZE), (BATCH, KEYS, GROUPS, SIZE + 3))


def plain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Attention and softmax_lse by the formula, of one batch."""
    k, v = (array.repeat_interleave(q.shape[2] // array.shape[2], 2) for array in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * options.get("softmax_scale", 1 / math.sqrt(q.shape[-1]))
    if cap := options.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    place = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    apart = torch.arange(k.shape[1]) - place
    if (slopes := options.get("alibi_slopes")) is not None:
        scores = scores - slopes.reshape(-1, q.shape[2], 1, 1) * apart.abs()
    left, right = (math.inf if side in (None, -1) else side for side in options.get("window_size", (-1, -1)))
    right = 0 if options.get("causal") else right
    scores = scores.masked_fill(~((apart >= -left) & (apart <= right)), -math.inf)
    sink = options.get("learnable_sink")
    column = scores.new_full((*scores.shape[:3], 1), -math.inf) if sink is None else sink.view(-1, 1, 1).expand(
        *scores.shape[:3], 1
    )  # fmt: skip
    p = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
    return torch.einsum("bhqk,bkhd->bqhd", p, v), torch.logsumexp(torch.cat((scores, column), -1), -1)


def with_gradients(function: Callable[..., Any], *tensors: Tensor) -> list[Tensor]:
    """out, softmax_lse and the gradients of a weighted sum of both."""
    results = function(*tensors)[:2]
    weights = [torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view_as(r) for r in results]
    loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    return [*results, *torch.autograd.grad(loss, tensors)]


def test_arguments_have_the_order_and_the_defaults_of_flash_attn() -> None:
    defaults = {
        "dropout_p": 0.0,
        "softmax_scale": None,
        "causal": False,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "alibi_slopes": None,
        "deterministic": False,
        "return_attn_probs": False,
        "block_table": None,
    }
    assert {f.__name__ for f in ORDER} == set(flash_attn.__all__)
    for function, order in ORDER.items():
        parameters = inspect.signature(function).parameters.values()
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [p.name for p in positional] == order
        assert all(p.default == defaults[p.name] for p in positional if p.name in defaults)


@pytest.mark.parametrize("options", CHANGES, ids=lambda options: "-".join(options) or "plain")
def test_results_and_gradients_are_those_of_the_formula(options: dict[str, Any], seed: int) -> None:
    def ours(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flash_attn_func(q, k, v, **options, return_attn_probs=True)

    expected = with_gradients(lambda *tensors: plain(*tensors, **options), *qkv_of(seed))
    torch.testing.assert_close(with_gradients(ours, *qkv_of(seed)), expected)


def test_packed_sequences_have_what_each_has_alone(seed: int) -> None:
    q, k, v = (array[0] for array in qkv_of(seed))
    slopes = torch.stack([SLOPES, SLOPES.flip(0), SLOPES])
    options: dict[str, Any] = {"causal": True, "softcap": 3.0}
    out, lse = flash_attn_varlen_func(q, k, v, ENDS_Q, ENDS_K, 5, 6, **options, alibi_slopes=slopes, return_lse=True)  # type: ignore[misc]
    assert lse.shape == (HEADS, QUERIES)
    for i in (0, 2):
        rows, keys = slice(*ENDS_Q[i : i + 2].tolist()), slice(*ENDS_K[i : i + 2].tolist())
        alone, its_lse = plain(q[None, rows], k[None, keys], v[None, keys], **options, alibi_slopes=slopes[i])
        torch.testing.assert_close(out[rows], alone[0])
        torch.testing.assert_close(lse[:, rows], its_lse[0])


@pytest.mark.parametrize("varlen", [False, True])
def test_arrays_of_several_have_the_same_bits(varlen: bool, seed: int) -> None:
    (qkv,) = drawn(seed, (BATCH, QUERIES, 3, HEADS, SIZE))
    q, k, v = qkv.unbind(2)
    if not varlen:
        expected = flash_attn_func(q, k, v, causal=True)
        assert torch.equal(flash_attn_qkvpacked_func(qkv, causal=True), expected)  # type: ignore[arg-type]
        assert torch.equal(flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)  # type: ignore[arg-type]
        return
    ends = ENDS_Q.long()  # as cumsum makes them
    expected = flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 5, 5, causal=True)
    one = flash_attn_varlen_qkvpacked_func(qkv[0], ends, 5, causal=True)
    two = flash_attn_varlen_kvpacked_func(q[0], qkv[0, :, 1:], ends, ends, 5, 5, causal=True)
    assert torch.equal(one, expected)  # type: ignore[arg-type]
    assert torch.equal(two, expected)  # type: ignore[arg-type]


def test_a_query_without_keys_has_zeros_and_no_nan(seed: int) -> None:
    q, k, _ = qkv_of(seed)
    out, lse, _ = flash_attn_func(k, q[:, :, :GROUPS], q[:, :, :GROUPS], causal=True, return_attn_probs=True)  # type: ignore[misc]
    assert not out[:, : KEYS - QUERIES].any()
    assert (lse[..., : KEYS - QUERIES] == -math.inf).all()
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k) if t.grad is not None)


def test_dropout_follows_pytorch_s_generator(seed: int) -> None:
    q, k, v = qkv_of(seed)

    def found(number: int) -> Tensor:
        torch.manual_seed(number)
        out = flash_attn_func(q, k, v, 0.5)
        assert isinstance(out, Tensor)
        return out

    assert torch.equal(found(1), found(1))
    assert not torch.equal(found(1), found(2))


@pytest.mark.parametrize("name", sorted(flash_attn.REFUSED))
def test_what_cannot_be_honoured_is_refused_by_name(name: str, seed: int) -> None:
    q, k, v = (array[0] for array in qkv_of(seed))
    given: dict[str, Any] = {name: torch.ones(2)}
    with pytest.raises(NotImplementedError, match=f"^flash_attn_varlen_func: {name} is not supported"):
        flash_attn_varlen_func(q, k, v, ENDS_Q, ENDS_K, 5, 6, **given)
    if name == "attention_chunk":
        flash_attn_varlen_func(q, k, v, ENDS_Q, ENDS_K, 5, 6, attention_chunk=0)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"q": None}, TypeError, "q is NoneType, expected a torch.Tensor"),
        ({"q": torch.zeros(2, 3, 4)}, ValueError, r"q has shape \(2, 3, 4\), expected \(batch, seqlen, nheads"),
        ({"window_size": 3}, TypeError, r"window_size is int, expected \(left, right\)"),
        ({"causal": 2}, ValueError, "causal is 2, expected a bool"),
        ({"dropout_p": 0.5, "return_attn_probs": True}, ValueError, "return_attn_probs is True, expected False"),
        ({"softmax_factor": 1.0}, TypeError, "got an unexpected keyword argument 'softmax_factor'"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], error: type[Exception], said: str, seed: int) -> None:
    given = dict(zip("qkv", qkv_of(seed), strict=True)) | change
    with pytest.raises(error, match=f"^flash_attn_func: {said}"):
        flash_attn_func(**given)
