"""attention: what its users are promised beyond the contract."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as sdpa

import retrograd.jax
from retrograd import attention, attention_qkvpacked
from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.spec import Param
from retrograd.core.torch.xp import torch_namespace
from retrograd.ops.attention.dropout import philox
from retrograd.ops.attention.op import FORMS, OP
from retrograd.ops.attention.reference import philox as reference_philox
from retrograd.ops.attention.triton.launches import planned, suits
from retrograd.testing.compare import assert_same_bits

# Random123's known answers for Philox4x32 with seven rounds: counter, key, words.
ZEROS = (0, 0, 0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape) + sum(shape)))


def gradients(results: Any, inputs: list[Tensor]) -> list[Tensor]:
    tensors = results if isinstance(results, tuple) else (results,)
    loss = sum((torch.where(t.isfinite(), t, 0) * drawn(*t.shape)).sum() for t in tensors)
    assert isinstance(loss, Tensor)
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [70, 90])
def test_it_is_pytorchs_attention(causal: bool, keys: int) -> None:
    q, k, v = drawn(2, 70, 4, 32), drawn(2, keys, 2, 32), drawn(2, keys, 2, 24, seed=1)
    mask: Any = causal_lower_right(70, keys) if causal else None
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    expected = sdpa(heads[0], heads[1], heads[2], attn_mask=mask, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(attention(q, k, v, causal=causal), expected)


def test_a_query_that_sees_no_key_has_zeros_and_no_nan() -> None:
    q, k, v = (t.requires_grad_() for t in (drawn(1, 9, 2, 16), drawn(1, 4, 2, 16), drawn(1, 4, 2, 16, seed=1)))
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :5].any()
    assert (lse[..., :5] == -math.inf).all()
    assert lse[..., 5:].isfinite().all()
    dq, dk, dv = gradients((out, lse), [q, k, v])
    assert not dq[:, :5].any()
    assert all(t.isfinite().all() for t in (dq, dk, dv))


def test_with_a_sink_such_a_query_has_its_lse() -> None:
    q, k, sinks = drawn(1, 9, 2, 16), drawn(1, 4, 2, 16), torch.tensor([0.5, -1.0])
    out, lse = attention(q, k, k, causal=True, sinks=sinks, return_lse=True)
    assert not out[:, :5].any()
    assert lse[0, :, 0].equal(sinks)


def test_a_bias_of_minus_infinity_masks() -> None:
    q, k = drawn(1, 6, 2, 16).requires_grad_(), drawn(1, 6, 2, 16, seed=1)
    before = torch.ones(6, 6).tril(-1).bool()
    bias = torch.zeros(1, 1, 6, 6).masked_fill(~before, -math.inf).requires_grad_()
    out = attention(q, k, k, bias=bias)
    assert not out[:, 0].any()
    heads = [t.transpose(1, 2) for t in (q, k)]
    expected = sdpa(heads[0], heads[1], heads[1], attn_mask=before).transpose(1, 2)
    torch.testing.assert_close(out[:, 1:], expected[:, 1:])
    assert all(t.isfinite().all() for t in gradients(out, [q, bias]))


@pytest.mark.parametrize("how", [{}, {"window": (20, 0)}, {"softcap": 3.0}, {"alibi_slopes": torch.tensor([0.1, 0.2])}])
def test_one_query_with_a_cache_of_keys_has_the_bits_of_the_full_sequence(how: dict[str, Any]) -> None:
    q, k, v = drawn(2, 150, 2, 16), drawn(2, 150, 1, 16), drawn(2, 150, 1, 16, seed=1)
    whole, lse = attention(q, k, v, causal=True, return_lse=True, **how)
    for t in (0, 1, 63, 64, 100, 149):
        out, own = attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], causal=True, return_lse=True, **how)
        assert_same_bits(
            {"out": out, "lse": own}, {"out": whole[:, t : t + 1], "lse": lse[..., t : t + 1]}, f"step {t}"
        )


def test_views_of_a_packed_qkv_are_taken_as_they_are() -> None:
    qkv = drawn(2, 20, 3, 4, 16)
    out = attention(*qkv.unbind(2), causal=True)
    assert out.equal(attention(*(t.contiguous() for t in qkv.unbind(2)), causal=True))
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv.unbind(2)]
    assert out.equal(attention(*transposed, causal=True))


def test_a_packed_qkv_has_one_gradient() -> None:
    qkv = drawn(1, 70, 3, 2, 16).requires_grad_()
    bounds = torch.tensor([0, 30, 70], dtype=torch.int32)
    out: Any = attention_qkvpacked(qkv, cu_seqlens=bounds, causal=True)
    apart = [t.detach().requires_grad_() for t in qkv.unbind(2)]
    expected = attention(*apart, cu_seqlens_q=bounds, cu_seqlens_k=bounds, causal=True)
    assert out.equal(expected)
    (found,) = gradients(out, [qkv])
    assert found.equal(torch.stack(gradients(expected, apart), 2))
    in_jax: Any = retrograd.jax.attention_qkvpacked(jnp.asarray(qkv.detach().numpy()), causal=True)
    alone: Any = attention_qkvpacked(qkv.detach(), causal=True)
    torch.testing.assert_close(torch.tensor(in_jax.tolist()), alone)


@pytest.mark.parametrize(("wrong", "text"), [(torch.zeros(2, 3, 4), r"qkv has shape \(2, 3, 4\)"), (3, "qkv is int")])
def test_what_is_no_packed_qkv_is_refused(wrong: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"attention_qkvpacked: {text}, expected"):
        attention_qkvpacked(wrong)


def test_dropout_keeps_the_expected_share_and_scales_it() -> None:
    q, k, v = torch.zeros(1, 256, 4, 16), torch.zeros(1, 512, 4, 16), torch.ones(1, 512, 4, 1)
    out = attention(q, k, v, dropout_p=0.25, dropout_seed=1)
    assert abs(out.mean() - 1) < 5 * math.sqrt(0.25 / 0.75 / out.numel() / 512)


def test_a_seed_gives_the_same_bits_again_and_another_seed_others() -> None:
    q, k = drawn(2, 70, 2, 16), drawn(2, 70, 2, 16, seed=1)
    first, again, other = (attention(q, k, k, dropout_p=0.5, dropout_seed=seed) for seed in (3, 3, 4))
    assert first.equal(again)
    assert not first.equal(other)
    assert first.equal(attention(q, k, k, dropout_p=0.5, dropout_seed=torch.tensor(3, dtype=torch.int32)))


def test_one_seed_drops_the_same_pairs_in_jax() -> None:
    q, v = torch.zeros(2, 70, 2, 16), torch.eye(100)[None, :, None].expand(2, 100, 1, 100)
    k = torch.zeros(2, 100, 1, 16)
    dropped = attention(q, k, v, dropout_p=0.3, dropout_seed=-5) == 0
    in_jax = retrograd.jax.attention(*(jnp.asarray(t.numpy()) for t in (q, k, v)), dropout_p=0.3, dropout_seed=-5) == 0
    assert dropped.equal(torch.tensor(in_jax.tolist()))
    assert abs(dropped.float().mean() - 0.3) < 0.02


def test_dropout_of_the_first_row_and_the_first_sequence_is_that_alone() -> None:
    q, k = drawn(2, 90, 2, 16), drawn(2, 90, 2, 16, seed=1)
    how: dict[str, Any] = {"dropout_p": 0.4, "dropout_seed": 9}
    assert attention(q, k, k, **how)[:1].equal(attention(q[:1], k[:1], k[:1], **how))
    bounds = torch.tensor([0, 70, 90], dtype=torch.int32)
    packed = attention(q[:1], k[:1], k[:1], cu_seqlens_q=bounds, cu_seqlens_k=bounds, **how)
    assert packed[:, :70].equal(attention(q[:1, :70], k[:1, :70], k[:1, :70], **how))


def test_random_numbers_are_philoxs() -> None:
    counter, expected = ZEROS
    words = torch.tensor(counter).unbind()
    assert tuple(map(int, reference_philox(words, 0))) == expected
    assert tuple(map(int, philox(torch_namespace(), list(words), torch.tensor(0)))) == expected
    in_jax = philox(jax_namespace(), [jnp.uint32(word) for word in counter], jnp.uint32(0))
    assert tuple(map(int, in_jax)) == expected
    assert FORMS == 2**16


def test_packed_sequences_are_those_of_separate_calls() -> None:
    q, k, v = drawn(1, 40, 4, 16), drawn(1, 60, 2, 16), drawn(1, 60, 2, 16, seed=1)
    of_q, of_k = (0, 7, 7, 30, 40), (5, 20, 22, 50, 50)
    out = attention(
        q, k, v, causal=True,
        cu_seqlens_q=torch.tensor(of_q, dtype=torch.int32), cu_seqlens_k=torch.tensor(of_k, dtype=torch.int32),
    )  # fmt: skip
    for (i, j), (m, n) in zip(pairwise(of_q), pairwise(of_k), strict=True):
        assert out[:, i:j].equal(attention(q[:, i:j], k[:, m:n], v[:, m:n], causal=True))


IDS = [[3, 3, 0, 0, 0, 7, 3, 3, 3], [-2, 1, 1, 1, -1, -1, 4, 4, -5]]
RUNS = [[(0, 2), (2, 5), (5, 6), (6, 9)], [(1, 4), (6, 8)]]


@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (1, 0), "softcap": 2.0}])
def test_runs_of_ids_are_sequences(how: dict[str, Any]) -> None:
    q, k, v = drawn(2, 9, 4, 16), drawn(2, 9, 2, 16), drawn(2, 9, 2, 16, seed=1)
    out, lse = attention(q, k, v, segment_ids=torch.tensor(IDS, dtype=torch.int32), return_lse=True, **how)
    for row, runs in enumerate(RUNS):
        left = torch.ones(9, dtype=torch.bool)
        for i, j in runs:
            part = [t[row : row + 1, i:j] for t in (q, k, v)]
            expected, own = attention(*part, return_lse=True, **how)
            torch.testing.assert_close(out[row, i:j], expected[0])
            torch.testing.assert_close(lse[row, :, i:j], own[0])
            left[i:j] = False
        assert not out[row, left].any()
        assert not lse[row, :, left].any()


def test_ids_drop_the_pairs_that_boundaries_drop() -> None:
    q, v = torch.zeros(1, 90, 2, 16), torch.eye(90)[None, :, None].expand(1, 90, 2, 90)
    ids, bounds = torch.zeros(1, 90, dtype=torch.int32), torch.tensor([0, 70, 90], dtype=torch.int32)
    ids[:, 70:] = 1
    how: dict[str, Any] = {"dropout_p": 0.4, "dropout_seed": 9}
    dropped = attention(q, q, v, segment_ids=ids, **how) == 0
    assert dropped.equal(attention(q, q, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, **how) == 0)
    assert 0.3 < (~dropped[:, :70, :, :70]).float().mean() < 0.9
    in_jax = retrograd.jax.attention(
        *(jnp.asarray(t.numpy()) for t in (q, q, v)), segment_ids=jnp.asarray(ids.numpy()), **how
    )
    assert dropped.equal(torch.tensor((in_jax == 0).tolist()))


def test_nan_at_steps_of_negative_ids_reaches_nothing() -> None:
    arrays = [drawn(2, 9, 2, 16, seed=seed).requires_grad_() for seed in range(3)]
    ids = torch.tensor(IDS, dtype=torch.int32)
    hidden = (ids < 0)[:, :, None, None]
    whole = attention(*(torch.where(hidden, math.nan, t) for t in arrays), segment_ids=ids)
    expected = attention(*arrays, segment_ids=ids)
    assert whole.equal(expected)
    for found, right in zip(gradients(whole, arrays), gradients(expected, arrays), strict=True):
        assert found.equal(right)
        assert not found[hidden[..., 0, 0]].any()


def test_a_batch_of_ids_is_vmapped_as_rows() -> None:
    q, k = (jnp.asarray(drawn(3, 2, 9, 2, 16, seed=seed).numpy()) for seed in range(2))
    ids = jnp.asarray([IDS, IDS[::-1], IDS], dtype="int32")

    def one(q: Any, k: Any, ids: Any) -> Any:
        return retrograd.jax.attention(q, k, k, segment_ids=ids, causal=True)

    found, shared = jax.vmap(one)(q, k, ids), jax.vmap(one, (0, 0, None))(q, k, ids[0])
    for i in range(3):
        assert jnp.allclose(found[i], one(q[i], k[i], ids[i]), atol=1e-6)
        assert jnp.allclose(shared[i], one(q[i], k[i], ids[0]), atol=1e-6)


BOUNDS = torch.tensor([0, 4], dtype=torch.int32)
NO_IDS = torch.zeros(1, 4, dtype=torch.int32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"k": torch.zeros(1, 4, 3, 16)}, r"attention: k.shape\[2\] is 3, expected key heads that divide the heads, 4"),
    (
        {"v": torch.zeros(1, 5, 2, 16)},
        r"attention: v has shape \(1, 5, 2, 16\), expected \(batch=1, keys=4, key heads=2, ",
    ),
    (
        {"window": (1, 2, 3)},
        r"attention: window is \(1, 2, 3\), expected \(left, right\), each at least 0, in 32 bits",
    ),
    ({"window": (-2, 0)}, r"attention: window is \(-2, 0\), expected"),
    ({"window": (2**31, 0)}, r"attention: window is \(2147483648, 0\), expected"),
    ({"scale": math.inf}, "attention: scale is inf, expected a finite number"),
    ({"softcap": 0.0}, "attention: softcap is 0.0, expected a positive number"),
    ({"dropout_p": 1.0, "dropout_seed": 1}, "attention: dropout_p is 1.0, expected at least 0 and less than 1"),
    ({"dropout_p": 0.1}, "attention: dropout_seed is None, expected a seed, since dropout_p is 0.1"),
    ({"dropout_seed": 1}, "attention: dropout_seed is 'a seed', expected None, since dropout_p is 0.0"),
    ({"cu_seqlens_q": BOUNDS}, "attention: cu_seqlens_k is None, expected boundaries, since cu_seqlens_q is given"),
    (
        {"segment_ids": torch.zeros(1, 3, dtype=torch.int32)},
        r"segment_ids has shape \(1, 3\), expected \(batch=1, queries",
    ),
    (
        {"segment_ids": NO_IDS, "cu_seqlens_q": BOUNDS, "cu_seqlens_k": BOUNDS},
        "attention: segment_ids is 'an array', expected None, since cu_seqlens_q is given",
    ),
    (
        {"segment_ids": NO_IDS, "k": torch.zeros(1, 5, 2, 16), "v": torch.zeros(1, 5, 2, 16)},
        "attention: segment_ids is 'an array', expected None, since there are 4 queries and 5 keys",
    ),
    (
        {"segment_ids": NO_IDS, "alibi_slopes": torch.zeros(1, 4)},
        r"attention: alibi_slopes has shape \(1, 4\), expected \(heads=4,\)",
    ),
    ({"backward": "fast"}, "attention: backward is 'fast', expected 'auto' or 'split' or 'fused'"),
    ({"bias": torch.zeros(1, 4, 5, 4)}, r"attention: bias has shape \(1, 4, 5, 4\), expected"),
    ({"q": torch.zeros(1, 4, 4, 600), "k": torch.zeros(1, 4, 2, 600)}, "attention: q has shape .*head size=1..576"),
]


@pytest.mark.parametrize(("changed", "text"), WRONG, ids=[str(list(changed)) for changed, _ in WRONG])
def test_what_does_not_go_together_is_refused(changed: dict[str, Any], text: str) -> None:
    given = {"q": torch.zeros(1, 4, 4, 16), "k": torch.zeros(1, 4, 2, 16), "v": torch.zeros(1, 4, 2, 16)}
    with pytest.raises(ValueError, match=text):
        attention(**{**given, **changed})


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16 or float32")])
def test_a_mask_of_bools_as_bias_is_refused_with_the_bias_that_it_is(dtype: torch.dtype, name: str) -> None:
    q = torch.zeros(1, 4, 2, 16, dtype=dtype)
    says = rf"^attention: bias has dtype bool, expected {name} \(0 where a key is seen, else -inf\)$"
    with pytest.raises(TypeError, match=says):
        attention(q, q, q, bias=torch.ones(1, 1, 4, 4, dtype=torch.bool))


def test_ids_of_another_dtype_are_refused() -> None:
    q = torch.zeros(1, 4, 2, 16)
    with pytest.raises(TypeError, match="attention: segment_ids has dtype int16, expected int32 or int64"):
        attention(q, q, q, segment_ids=torch.zeros(1, 4, dtype=torch.int16))


WIDTHS = (16, 64, 80, 128, 192, 256, 512)


@pytest.mark.parametrize("arch", SUPPORTED.values(), ids=SUPPORTED)
@pytest.mark.parametrize(("dtype", "D"), [("bfloat16", D) for D in WIDTHS] + [("float32", D) for D in WIDTHS[:-1]])
def test_the_order_of_sums_does_not_depend_on_packing_or_on_a_window(arch: Arch, dtype: str, D: int) -> None:
    arrays = {name: Param((1, 300, 2, D), dtype) for name in "qkv"}
    packed = {f"cu_seqlens_{side}": Param((3,), "int32") for side in "qk"}
    ids = {"segment_ids": Param((1, 300), "int32")}
    specs = [OP.spec(arrays | more, options) for more in ({}, packed, ids) for options in ({}, {"window": (9, 0)})]
    plans = [(planned(spec, arch, "fwd"), planned(spec, arch, "bwd")) for spec in specs]
    assert len({(f.queries.keys, b.queries.keys, b.keys.queries, b.fused) for f, b in plans}) == 1


def test_the_widest_heads_in_float32_have_kernels_where_shared_memory_holds_their_tiles() -> None:
    arrays = {name: Param((1, 300, 2, 257), "float32") for name in "qkv"}
    assert {name for name, arch in SUPPORTED.items() if suits(OP.spec(arrays, {}), arch, "fwd")} == {"sm_90", "sm_100"}


def test_ids_tell_fewer_than_2_to_the_31_steps_apart() -> None:
    arrays = {name: Param((2**16, 2**15, 1, 16), "bfloat16") for name in "qkv"}
    with pytest.raises(ValueError, match="segment_ids is '65536 rows of 32768 steps', expected fewer than 2147483648"):
        OP.spec(arrays | {"segment_ids": Param((2**16, 2**15), "int32")}, {}).check()
