"""PyTorch's attention operators on retrograd's passes, here for CPU tensors; and PyTorch's registry."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import compat_attention
import pytest
import torch
import torch.nn.attention.varlen
from compat_calls import close, drawing, gradients
from torch import Tensor

import retrograd
from retrograd.compat import sdpa

plain: Any = compat_attention
varlen: Any = torch.nn.attention.varlen
aten = torch.ops.aten

BATCH, HEADS, GROUPS, DIM, WIDE = 2, 4, 2, 8, 6
ENDS_Q = torch.tensor([0, 3, 3, 7, 9], dtype=torch.int32)  # the second has no queries, the third no keys
ENDS_K = torch.tensor([0, 5, 8, 8, 9], dtype=torch.int32)
WINDOWS = [(-1, -1), (-1, 0), (2, 0), (1, 2)]


@pytest.fixture
def on_cpu() -> Iterator[None]:
    registered = sdpa.Registered("CPU")
    yield
    registered.remove()


def by_head(*arrays: Tensor) -> list[Tensor]:
    return [array.transpose(1, 2) for array in arrays]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("dense", [True, False], ids=["heads first", "steps first"])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 9), (9, 5)])
def test_scaled_dot_product_flash_attention(
    causal: bool, scale: float | None, dense: bool, queries: int, keys: int, seed: int
) -> None:
    draw = drawing(seed)
    shapes = (queries, HEADS, DIM), (keys, GROUPS, DIM), (keys, GROUPS, WIDE)
    arrays = dict(zip("qkv", (draw(BATCH, *shape) for shape in shapes), strict=True))
    given = by_head(*arrays.values())
    given = [array.contiguous() for array in given] if dense else given
    out, lse, *_ = aten._scaled_dot_product_flash_attention(*given, 0.0, causal, scale=scale)
    expected, expected_lse = plain.attention(*arrays.values(), causal=causal, softmax_scale=scale)
    close((out.transpose(1, 2), lse), (expected, expected_lse))
    close(gradients(out.transpose(1, 2), arrays), gradients(expected, arrays))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dense", [True, False], ids=["heads first", "steps first"])
def test_results_and_gradients_have_the_strides_that_pytorch_promises(dense: bool) -> None:
    x = torch.randn(BATCH, HEADS, 7, DIM) if dense else torch.randn(BATCH, 7, HEADS, DIM).transpose(1, 2)
    q, k, v = (x.detach().clone().requires_grad_() for _ in range(3))
    out, lse, _, _, max_q, max_k, state, unused, _ = aten._scaled_dot_product_flash_attention(q, k, v)
    traced = aten._scaled_dot_product_flash_attention(*(array.to("meta") for array in (q, k, v)))
    for found, promised in ((out, traced[0]), (lse, traced[1]), (state, traced[6]), (unused, traced[7])):
        assert (found.shape, found.stride(), found.dtype) == (promised.shape, promised.stride(), promised.dtype)
    assert (max_q, max_k) == (7, 7)
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.stride() == x.stride()


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_varlen_attn(window: tuple[int, int], seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(9, HEADS, DIM), "k": draw(9, GROUPS, DIM), "v": draw(9, GROUPS, DIM)}
    aux = varlen.AuxRequest(lse=True)
    options: dict[str, Any] = {"window_size": window, "scale": 0.4, "enable_gqa": True}
    out, lse = varlen.varlen_attn(*arrays.values(), ENDS_Q, ENDS_K, 4, 5, **options, return_aux=aux)
    expected = plain.packed(*arrays.values(), ENDS_Q, ENDS_K, window_size=window, softmax_scale=0.4)
    close((out, lse), expected)
    close(gradients(out, arrays), gradients(expected[0], arrays))
    into = torch.full_like(out, torch.nan)
    with torch.no_grad():
        assert varlen.varlen_attn_out(into, *arrays.values(), ENDS_Q, ENDS_K, 4, 5, **options) is into
    assert torch.equal(into, out)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_flash_attention_of_a_batch(window: tuple[int, int], seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(BATCH, 5, HEADS, DIM), "k": draw(BATCH, 9, GROUPS, DIM), "v": draw(BATCH, 9, GROUPS, DIM)}
    sides = {"window_size_left": window[0], "window_size_right": window[1]}
    out, lse, *_ = aten._flash_attention_forward(*arrays.values(), None, None, 5, 9, 0.0, False, False, **sides)
    expected = plain.attention(*arrays.values(), window_size=window)
    close((out, lse), expected)
    close(gradients(out, arrays), gradients(expected[0], arrays))


@pytest.mark.usefixtures("on_cpu")
def test_dropout_is_the_same_in_both_passes(seed: int) -> None:
    q, k, v = (drawing(seed + n)(BATCH, 7, HEADS, DIM) for n in range(3))
    torch.manual_seed(seed)
    found = aten._scaled_dot_product_flash_attention(*by_head(q, k, v), 0.4, True)
    seeds = found[6].view(torch.int64)[0].int()
    expected = retrograd.attention(q, k, v, causal=True, dropout_p=0.4, dropout_seed=seeds)
    assert torch.equal(found[0].transpose(1, 2), expected)
    ours, theirs = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found[0], expected))
    assert all(map(torch.equal, ours, theirs))
    torch.manual_seed(seed)
    again = aten._scaled_dot_product_flash_attention(*by_head(q, k, v), 0.4, True)
    assert torch.equal(again[0], found[0])


@pytest.mark.usefixtures("on_cpu")
def test_a_gradient_without_strides(seed: int) -> None:
    q = drawing(seed)(BATCH, HEADS, 7, DIM)
    out = aten._scaled_dot_product_flash_attention(q, q, q)[0]
    (found,) = torch.autograd.grad(out.sum(), q, retain_graph=True)  # a number, expanded
    assert torch.equal(found, torch.autograd.grad(out, q, torch.ones_like(out))[0])


@pytest.mark.usefixtures("on_cpu")
def test_used_keys_and_slopes_without_gradients(seed: int) -> None:
    draw = drawing(seed)
    q, k, v = draw(2, HEADS, DIM), draw(10, GROUPS, DIM), draw(10, GROUPS, DIM)
    one, rows, used = (torch.tensor(n, dtype=torch.int32) for n in ([0, 1, 2], [0, 5, 10], [3, 4]))
    with torch.no_grad():
        found = varlen.varlen_attn(q, k, v, one, rows, 1, 5, enable_gqa=True, seqused_k=used)
        parts = [
            plain.attention(q[None, n : n + 1], *(c[None, 5 * n : 5 * n + s] for c in (k, v)))
            for n, s in ((0, 3), (1, 4))
        ]
        close(found, torch.cat([part[0][0] for part in parts]))
        slopes = draw(HEADS).detach()
        out = aten._flash_attention_forward(q, k, v, one, rows, 1, 5, 0.0, False, False, alibi_slopes=slopes)[0]
        close(out, plain.packed(q, k, v, one, rows, alibi_slopes=slopes)[0])
    for refused in ({"seqused_k": used}, {"alibi_slopes": slopes}):
        with pytest.raises(NotImplementedError, match=f"{next(iter(refused))} is not supported where a gradient"):
            aten._flash_attention_forward(q, k, v, one, rows, 1, 5, 0.0, False, False, **refused)


@pytest.mark.usefixtures("on_cpu")
def test_what_cannot_be_done_is_refused_by_name() -> None:
    q, ends = torch.ones(5, HEADS, DIM), torch.tensor([0, 5], dtype=torch.int32)
    pages = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="_flash_attention_forward: block_table is not supported"):
        aten._flash_attention_forward(q, q, q, ends, ends, 5, 5, 0.0, False, False, block_table=pages)
    with pytest.raises(NotImplementedError, match="_flash_attention_forward: return_debug_mask is not supported"):
        aten._flash_attention_forward(q, q, q, ends, ends, 5, 5, 0.0, False, True)
    with pytest.raises(NotImplementedError, match="_scaled_dot_product_flash_attention: return_debug_mask"):
        aten._scaled_dot_product_flash_attention(q[None], q[None], q[None], 0.0, False, True)
    with pytest.raises(ValueError, match="_flash_attention_forward: cum_seq_k is None, expected boundaries"):
        aten._flash_attention_forward(q, q, q, ends, None, 5, 5, 0.0, False, False)


@pytest.mark.usefixtures("on_cpu")
def test_under_autocast_dtypes_stay() -> None:
    q = torch.randn(BATCH, HEADS, 5, DIM).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sdpa.sdpa_forward(q, q, q)[0]
    assert out.dtype == torch.float16
    assert torch.equal(out, sdpa.sdpa_forward(q, q, q)[0])


def test_arguments_are_those_of_the_operators() -> None:
    for name, function in sdpa.OPERATORS.items():
        if function is not sdpa.flash_forward_into:
            schema = getattr(aten, name).default._schema
            call: Any = function
            found = inspect.signature(call).parameters
            assert [(a.name, a.kwarg_only) for a in schema.arguments] == [
                (p.name, p.kind is p.KEYWORD_ONLY) for p in found.values()
            ]


def test_install_and_uninstall() -> None:
    registry = torch.nn.attention
    sdpa.install()
    sdpa.install()  # again changes nothing
    assert registry.current_flash_attention_impl() == "retrograd"
    assert "retrograd" in registry.list_flash_attention_impls()
    sdpa.uninstall()
    assert registry.current_flash_attention_impl() is None
    sdpa.uninstall()


def test_uninstall_leaves_another_implementation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: "FA4")
    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", lambda: called.append(1))
    sdpa.uninstall()
    assert not called


def test_a_version_of_pytorch_without_the_registry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.attention, "register_flash_attention_impl")
    with pytest.raises(
        RuntimeError, match=f"torch {torch.__version__.split('+')[0]}.* has no torch.nn.attention.register"
    ):
        sdpa.install()


def test_removed_operators_are_pytorch_s_again() -> None:
    q = torch.ones(1, HEADS, 5, DIM)
    registered = sdpa.Registered("CPU")
    aten._scaled_dot_product_flash_attention(q, q, q)
    registered.remove()
    registered.remove()
    with pytest.raises(NotImplementedError, match="CPU"):
        aten._scaled_dot_product_flash_attention(q, q, q)
