"""The peers of attention compute what the op computes, or say why not; the definition stands in for GPU kernels."""

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.bench.peers import NotApplicableError, Peer, native, peers
from retrograd.bench.selection import bench_cases
from retrograd.opinfo.cases import Case
from retrograd.ops.attention.cases import case
from retrograd.ops.infos import info
from retrograd.testing.draw import draw

ATTENTION = info("attention")
SHAPE = (2, 9, 9, 4, 2, 16)
BOUNDS = (0, 3, 3, 7, 9)
CAUSAL = case("causal", SHAPE, dtype="float32", causal=True)
WINDOW = case("window", SHAPE, dtype="float32", window=(3, 0), scale=0.3)
SINKS = case("sinks", SHAPE, dtype="float32", causal=True, sinks=True)
PACKED = case("packed", (1, *SHAPE[1:]), dtype="float32", causal=True, packed=(BOUNDS, BOUNDS))


def definition(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
    found = ATTENTION.reference(q, k, v, **more)
    assert isinstance(found, Tensor)
    return found


def expected(case: Case, tensors: dict[str, Tensor]) -> Tensor:
    return definition(**tensors, **case.options)


def named(framework: str, name: str) -> Peer:
    (peer,) = (peer for peer in peers("attention", framework) if peer.name == name)
    return peer


def reason(peer: Peer, case: Case) -> str:
    with pytest.raises(NotApplicableError) as error:
        peer.build(case)
    return str(error.value)


# flash-attn-4's functions, with the arguments that they have and an adapter may give.
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
) -> tuple[Tensor, None]:
    left, right = (-1 if side is None else side for side in window_size)
    return definition(
        q, k, v, sinks=learnable_sink, causal=causal, window=(left, right), scale=softmax_scale, softcap=softcap or None
    ), None


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    assert cu_seqlens_q is not None
    assert cu_seqlens_k is not None
    assert max_seqlen_q == max_seqlen_k == 4
    parts = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        own = slice(start, end)
        parts.append(flash_attn_func(q[None, own], k[None, own], v[None, own], **more)[0][0])
    return torch.cat(parts), None


@pytest.fixture
def fa4(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", interface)


@pytest.mark.usefixtures("fa4")
@pytest.mark.parametrize("case", [CAUSAL, WINDOW, SINKS, PACKED], ids=lambda case: case.name)
def test_fa4(case: Case) -> None:
    tensors = draw(case, "cpu", 0)
    for name in ("fa4", "fa4_reproducible"):
        found = native(named("torch", name).build(case)).call(tensors)
        torch.testing.assert_close(found, expected(case, tensors))


@pytest.mark.usefixtures("fa4")
def test_fa4_is_measured_at_every_length() -> None:
    """Its kernels are compiled for a kind of calls, not for a length."""
    for name in ("fa4", "fa4_reproducible"):
        peer = named("torch", name)
        assert not peer.costly
        for one in bench_cases(ATTENTION, ["B2_T*", "causal_B2_T*"]):
            peer.build(one)


def in_torch(arrays: Any) -> list[Tensor]:
    import jax

    return [torch.tensor(jax.device_get(array)) for array in arrays]


# jax-linear-attention's function; `unsupported` is what its `supported` answers.
def fake_jla(monkeypatch: pytest.MonkeyPatch, unsupported: str | None = None) -> list[str]:
    import jax.numpy as jnp

    used = []

    def flash_attention(
        q: Any,
        k: Any,
        v: Any,
        *,
        segment_ids: Any = None,
        sliding_window: int | None = None,
        scale: float | None = None,
        backward: str = "ranged",
        sinks: Any = None,
        persistent_forward: bool | None = None,
    ) -> Any:
        used.append(backward)
        more = {"segment_ids": segment_ids, "sinks": sinks}
        more = {name: in_torch([array])[0] for name, array in more.items() if array is not None}
        left = -1 if sliding_window is None else sliding_window - 1
        out = definition(*in_torch([q, k, v]), **more, causal=True, window=(left, -1), scale=scale)
        return jnp.asarray(out.numpy())

    def supported(q: Any, k: Any, v: Any) -> str | None:
        assert q.shape[:2] == k.shape[:2] == v.shape[:2]
        assert q.dtype == k.dtype == v.dtype
        return unsupported

    module = SimpleNamespace(flash_attention=flash_attention, supported=supported)
    monkeypatch.setitem(sys.modules, "jla.ops.mosaic_gpu.attention", module)
    return used


def found_in_jax(peer: Peer, case: Case, tensors: dict[str, Tensor]) -> Tensor:
    import jax.numpy as jnp

    call = native(peer.build(case)).call
    (found,) = in_torch([call({name: jnp.asarray(tensor.numpy()) for name, tensor in tensors.items()})])
    return found


@pytest.mark.parametrize("case", [CAUSAL, WINDOW, SINKS, PACKED], ids=lambda case: case.name)
def test_jla(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    used = fake_jla(monkeypatch)
    tensors = draw(case, "cpu", 0)
    for name in ("jla", "jla_fused"):
        torch.testing.assert_close(found_in_jax(named("jax", name), case, tensors), expected(case, tensors))
    assert used == ["ranged", "fused"]


def test_what_jla_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    fake_jla(monkeypatch)
    jla, fused = (named("jax", name) for name in ("jla", "jla_fused"))
    assert reason(jla, case("plain", SHAPE)) == "it is always causal"
    assert reason(jla, case("ahead", SHAPE, window=(3, 2))) == "it is always causal"
    assert reason(jla, case("softcap", SHAPE, causal=True, softcap=2.0)) == "it takes no softcap"
    gaps = case("gaps", (1, *SHAPE[1:]), causal=True, packed=((0, 3, 7), (0, 3, 7)))
    assert reason(jla, gaps) == "its packed sequences fill all steps, those of q as those of k"
    other = case("other", (1, *SHAPE[1:]), causal=True, packed=((0, 3, 9), (0, 4, 9)))
    assert reason(jla, other) == "its packed sequences fill all steps, those of q as those of k"
    narrow = case("narrow", SHAPE, value=8, causal=True)
    jla.build(narrow)
    assert reason(fused, narrow) == "its fused backward pass takes one width of q, k and v"
    fake_jla(monkeypatch, unsupported="head dims (q/k 16, v 16) must be one of ...")
    assert reason(jla, CAUSAL) == "head dims (q/k 16, v 16) must be one of ..."


# tokamax's function, with the arguments that it has and an adapter may give.
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    implementation: str | None = None,
) -> Any:
    import jax.numpy as jnp

    assert implementation == "mosaic"
    assert mask is None
    assert not isinstance(local_window_size, int)
    more = {} if bias is None else {"bias": in_torch([bias])[0]}
    out = definition(
        *in_torch([query, key, value]), **more, causal=is_causal, window=local_window_size, scale=scale,
        softcap=logits_soft_cap,
    )  # fmt: skip
    return jnp.asarray(out.numpy())


TOKAMAX = [
    CAUSAL,
    WINDOW,
    case("ahead", SHAPE, dtype="float32", window=(-1, 2)),
    case("softcap", SHAPE, dtype="float32", causal=True, softcap=2.0),
    case("bias", SHAPE, dtype="float32", bias=(1, 4, 9, 9)),
    case("more_keys", (2, 5, 9, 4, 2, 16), dtype="float32"),
]


@pytest.mark.parametrize("case", TOKAMAX, ids=lambda case: case.name)
def test_tokamax(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setitem(sys.modules, "tokamax", SimpleNamespace(dot_product_attention=dot_product_attention))
    tensors = draw(case, "cpu", 0)
    torch.testing.assert_close(found_in_jax(named("jax", "tokamax"), case, tensors), expected(case, tensors))


def test_what_tokamax_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setitem(sys.modules, "tokamax", SimpleNamespace(dot_product_attention=dot_product_attention))
    tokamax = named("jax", "tokamax")
    assert reason(tokamax, SINKS) == "it takes no sinks"
    assert reason(tokamax, PACKED) == "it takes no cu_seqlens_q"
    more_keys = case("more_keys", (2, 5, 9, 4, 2, 16), causal=True)
    for name in ("tokamax", "cudnn"):
        assert reason(named("jax", name), more_keys) == "its masks are aligned with the first key"


def test_what_is_not_installed_is_left_out() -> None:
    pytest.importorskip("jax")
    for name, package in (("jla", "jla"), ("jla_fused", "jla"), ("tokamax", "tokamax")):
        assert reason(named("jax", name), CAUSAL) == f"{package} is not installed"
