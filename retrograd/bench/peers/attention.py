"""Peers of attention in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from retrograd.opinfo.cases import Case

from . import Function, NotApplicableError, Peer, check_takes, compile_for_one_shape, load

ARRAYS = frozenset({"q", "k", "v"})


def heads_first(x: Tensor) -> Tensor:
    """(B, T, H, D) as a view (B, H, T, D), and back."""
    return x.transpose(1, 2)


def sdpa(case: Case, backend: SDPBackend) -> Function:
    """PyTorch's scaled_dot_product_attention with one of its libraries, on views of (B, T, H, D)."""
    check_takes(case, ARRAYS, frozenset({"causal", "scale"}))
    square = case.inputs["q"].shape[1] == case.inputs["k"].shape[1]
    causal = bool(case.options.get("causal"))
    if causal and not square:
        raise NotApplicableError("its causal mask is aligned with the first key")
    grouped = case.inputs["q"].shape[2] != case.inputs["k"].shape[2]

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        q, k, v = (heads_first(inputs[name]) for name in "qkv")
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(
                q, k, v, is_causal=causal, scale=case.options.get("scale"), enable_gqa=grouped
            )
        return heads_first(out)

    return call


def flex_tiles(case: Case) -> dict[str, int] | None:
    """Tiles for FlexAttention where its own choice does not fit into shared memory; of those that fit, the fastest."""
    size = case.inputs["q"].shape[3]
    if size > 256:
        forward = {"BLOCK_M": 64 if size <= 512 else 32, "BLOCK_N": 32, "num_stages": 1, "num_warps": 8}
        return forward | {"BLOCK_M1": 32, "BLOCK_N1": 32, "BLOCK_M2": 32, "BLOCK_N2": 32, "bwd_num_stages": 1}
    return {"bwd_num_stages": 2} if "bias" in case.inputs else None


def flex(case: Case) -> Function:
    """FlexAttention, compiled for the case's shape; a bias is a buffer that its score function reads."""
    check_takes(case, ARRAYS | {"bias", "alibi_slopes"}, frozenset({"causal", "window", "scale", "softcap"}))
    queries, keys = case.inputs["q"].shape[1], case.inputs["k"].shape[1]
    shift = keys - queries
    options = case.options
    left, right = options.get("window") or (-1, -1)
    right = 0 if options.get("causal") else right
    cap = options.get("softcap")

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = j >= 0
        if left >= 0:
            found = found & (j >= i + shift - left)
        return found & (j <= i + shift + right) if right >= 0 else found

    create = load("torch.nn.attention.flex_attention", "create_block_mask")
    masked = left >= 0 or right >= 0
    mask = create(visible, None, None, queries, keys, device="cuda") if masked else None
    attention = compile_for_one_shape(load("torch.nn.attention.flex_attention", "flex_attention"))
    own = case.inputs["bias"].shape if "bias" in case.inputs else (1, 1, 1, 1)

    def score_of(inputs: Mapping[str, Tensor]) -> Callable[..., Tensor] | None:
        bias, slopes = inputs.get("bias"), inputs.get("alibi_slopes")
        if bias is None and slopes is None and cap is None:
            return None

        def score(x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if cap is not None:
                x = cap * torch.tanh(x / cap)
            if bias is not None:
                at = (at * (size > 1) for at, size in zip((b, h, i, j), own, strict=True))
                x = x + bias[tuple(at)]
            if slopes is not None:
                x = x - slopes[h] * (j - i - shift).abs()
            return x

        return score

    grouped = case.inputs["q"].shape[2] != case.inputs["k"].shape[2]
    options_of_kernels = flex_tiles(case)

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        q, k, v = (heads_first(inputs[name]) for name in "qkv")
        out: Tensor = attention(
            q,
            k,
            v,
            score_mod=score_of(inputs),
            block_mask=mask,
            scale=options.get("scale"),
            enable_gqa=grouped,
            kernel_options=options_of_kernels,
        )
        return heads_first(out)

    return call


def longest(case: Case, side: str) -> int:
    """The length of the longest packed sequence."""
    bounds = case.inputs[f"cu_seqlens_{side}"].values or ()
    return int(max(b - a for a, b in pairwise(bounds)))


def varlen(case: Case) -> Function:
    """PyTorch's attention of packed sequences, which is FA2; its rows are such sequences where it has a window."""
    check_takes(case, ARRAYS | {"cu_seqlens_q", "cu_seqlens_k"}, frozenset({"causal", "window", "scale"}))
    packed = "cu_seqlens_q" in case.inputs
    if not packed and "window" not in case.options:
        raise NotApplicableError("it is timed with packed sequences and windows only")
    attention = load("torch.nn.attention.varlen", "varlen_attn")
    left, right = case.options.get("window") or (-1, -1)
    queries, keys = (longest(case, side) if packed else case.inputs[side].shape[1] for side in "qk")
    options = {
        "max_q": queries,
        "max_k": keys,
        "scale": case.options.get("scale"),
        "window_size": (left, 0 if case.options.get("causal") else right),
    }

    made: dict[str, Tensor] = {}
    if not packed:
        for side, steps in zip("qk", (queries, keys), strict=True):
            end = (case.inputs["q"].shape[0] + 1) * steps
            made[f"cu_seqlens_{side}"] = torch.arange(0, end, steps, dtype=torch.int32, device="cuda")

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        q, k, v = (inputs[name].flatten(0, 1) for name in "qkv")
        bounds = {**inputs, **made}
        out: Tensor = attention(q, k, v, bounds["cu_seqlens_q"], bounds["cu_seqlens_k"], **options)
        return out.unflatten(0, inputs["q"].shape[:2])

    return call


def flash(case: Case, module: str, arguments: frozenset[str] = frozenset(), **more: Any) -> Function:
    """The flash-attention package: FA2's CUDA kernels, or FA4's in CuTe; packed sequences by its function for these.

    `arguments` are those that FA4 alone takes.
    """
    packed = "cu_seqlens_q" in case.inputs
    taken = ARRAYS | {"cu_seqlens_q", "cu_seqlens_k"} | arguments
    check_takes(case, taken, frozenset({"causal", "window", "scale", "softcap"}))
    attention = load(module, "flash_attn_varlen_func" if packed else "flash_attn_func")
    options = {
        "causal": bool(case.options.get("causal")),
        "softmax_scale": case.options.get("scale"),
        "window_size": case.options.get("window") or (-1, -1),
        "softcap": case.options.get("softcap") or 0.0,
        **more,
    }
    lengths = {f"max_seqlen_{side}": longest(case, side) for side in "qk"} if packed else {}

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        q, k, v = (inputs[name] for name in "qkv")
        sinks = {"learnable_sink": inputs["sinks"]} if "sinks" in inputs else {}
        if packed:
            bounds = {name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
            found = attention(*(x.flatten(0, 1) for x in (q, k, v)), **bounds, **lengths, **sinks, **options)
        else:
            found = attention(q, k, v, **sinks, **options)
        out: Tensor = found[0] if isinstance(found, tuple) else found
        return out.unflatten(0, inputs["q"].shape[:2]) if packed else out

    return call


fa4 = partial(flash, module="flash_attn.cute.interface", arguments=frozenset({"sinks"}))

PEERS = (
    Peer("cudnn", partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION), "torch"),
    Peer("sdpa_flash", partial(sdpa, backend=SDPBackend.FLASH_ATTENTION), "torch"),
    Peer("varlen_flash", varlen, "torch"),
    Peer("flex_attention", flex, "torch", costly=True),
    Peer("flash_attn", partial(flash, module="flash_attn"), "flash_attn"),
    Peer("fa4", fa4, "flash-attn-4"),
    Peer("fa4_reproducible", partial(fa4, deterministic=True), "flash-attn-4"),
)
