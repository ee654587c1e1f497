"""PyTorch's own attention on `retrograd.attention`, by PyTorch's hook for other flash attentions.

After `install()` the flash backend of `F.scaled_dot_product_attention` and of `torch.nn.attention.varlen.varlen_attn`
runs on our kernels for tensors on a GPU, forward and backward: causal, grouped heads, windows, dropout. PyTorch still
chooses the backend: what its flash attention does not take, such as a mask, stays with the others, unless
`torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)` asks for this one alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

import retrograd
from retrograd.compat.checks import refuse
from retrograd.core.torch.passes import backward_pass, shapes_of
from retrograd.ops.attention.op import OP

NAME = "retrograd"
SEEDS = 2**31 - 1
ARRAYS = frozenset({"q", "k", "v"})  # whose gradients are wanted


class Installed:
    """PyTorch's handle of an active implementation."""

    def __init__(self, library: Library) -> None:
        self.library: Library | None = library

    def remove(self) -> None:
        """Give the operators back to PyTorch's kernels."""
        if self.library is not None:
            self.library._destroy()
        self.library = None


def install() -> None:
    """Let PyTorch's flash attention on a GPU run on `retrograd.attention`.

    Raises:
        RuntimeError: if this PyTorch has no such hook; 2.11 and 2.13 have it.

    Example:
        >>> import retrograd.compat.sdpa
        >>> retrograd.compat.sdpa.install()
        >>> import torch
        >>> torch.nn.attention.current_flash_attention_impl()
        'retrograd'
        >>> retrograd.compat.sdpa.uninstall()
    """
    hooks = _hooks()
    hooks.register_flash_attention_impl(NAME, register_fn=lambda: Installed(register(Library("aten", "IMPL"), "CUDA")))
    hooks.activate_flash_attention_impl(NAME)


def uninstall() -> None:
    """Undo `install`, if it is active."""
    hooks = _hooks()
    if hooks.current_flash_attention_impl() == NAME:
        hooks.restore_flash_attention_impl()


def register(library: Library, key: str) -> Library:
    """Register our functions for the operators of PyTorch's flash attention on a kind of device."""
    for name, function in (
        ("_flash_attention_forward", forward),
        ("_flash_attention_forward_no_dropout_inplace", forward_into),
        ("_flash_attention_backward", backward),
        ("_scaled_dot_product_flash_attention", scaled_dot_product),
        ("_scaled_dot_product_flash_attention_backward", scaled_dot_product_backward),
    ):
        library.impl(name, function, key)
    return library


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`aten::_flash_attention_forward`: (B, T, H, D), or packed (total, H, D) with boundaries.

    Returns out, logsumexp (B, H, T) or (H, total), the seed as two numbers, and two arrays that are not used.
    """
    refuse("scaled_dot_product_attention", "", return_debug_mask=return_debug_mask, block_table=block_table)
    refuse("varlen_attn", "", seqused_k=seqused_k)
    seed = torch.randint(SEEDS, (), dtype=torch.int32, device=query.device) if dropout_p else None
    packed = cum_seq_q is not None
    q, k, v = (array[None] if packed else array for array in (query, key, value))
    out, lse = retrograd.attention(
        q,
        k,
        v,
        alibi_slopes=alibi_slopes,
        dropout_seed=seed,
        cu_seqlens_q=cum_seq_q,
        cu_seqlens_k=cum_seq_k,
        causal=is_causal,
        window=window_of(window_size_left, window_size_right),
        scale=scale,
        dropout_p=dropout_p,
        return_lse=True,
    )
    state = torch.zeros(2, dtype=torch.int64, device=query.device)
    if seed is not None:
        state[0] = seed
    unused = torch.zeros((), dtype=torch.uint64, device=query.device)
    if packed:
        out, lse = out[0], lse[0]
    return laid_out_like(query, out), lse, state.view(torch.uint64), unused, query.new_empty(0)


def forward_into(out: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """`aten::_flash_attention_forward_no_dropout_inplace`: writes out, and returns logsumexp."""
    found, lse, *_ = forward(*arguments, **options)
    out.copy_(found)
    return lse


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::_flash_attention_backward`."""
    packed = cum_seq_q is not None
    arrays: dict[str, Tensor | None] = dict.fromkeys(OP.arguments)
    arrays |= {"q": query, "k": key, "v": value, "dout": grad_out, "out": out, "lse": logsumexp}
    if packed:
        arrays = {name: None if array is None else array[None] for name, array in arrays.items()}
    arrays |= {"cu_seqlens_q": cum_seq_q, "cu_seqlens_k": cum_seq_k}
    if dropout_p:
        arrays["dropout_seed"] = rng_state.view(torch.int64)[0].int()
    options = {
        "causal": is_causal,
        "window": window_of(window_size_left, window_size_right),
        "scale": scale,
        "softcap": None,
        "dropout_p": dropout_p,
        "return_lse": False,
        "backward": "auto",
    }
    params = tuple(shapes_of([arrays[name] for name in OP.arguments]))
    run = backward_pass(OP, params, query.device, ARRAYS, *options.values())
    found = dict(zip(run.makes, run.run([arrays.get(name) for name in run.names]), strict=True))
    dq, dk, dv = (found[f"d{name}"] for name in ("q", "k", "v"))
    assert dq is not None
    assert dk is not None
    assert dv is not None
    if packed:
        dq, dk, dv = dq[0], dk[0], dv[0]
    return laid_out_like(query, dq), laid_out_like(key, dk), laid_out_like(value, dv)


def scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """`aten::_scaled_dot_product_flash_attention`: (B, H, T, D)."""
    q, k, v = (array.transpose(1, 2) for array in (query, key, value))
    steps, keys = q.shape[1], k.shape[1]
    out, lse, *rest = forward(q, k, v, None, None, steps, keys, dropout_p, is_causal, return_debug_mask, scale=scale)
    return out.transpose(1, 2), lse, None, None, steps, keys, *rest


def scaled_dot_product_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """`aten::_scaled_dot_product_flash_attention_backward`."""
    dout, q, k, v, o = (array.transpose(1, 2) for array in (grad_out, query, key, value, out))
    rest = (None, None, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset)
    return tuple(d.transpose(1, 2) for d in backward(dout, q, k, v, o, logsumexp, *rest, scale=scale))


def laid_out_like(tensor: Tensor, result: Tensor) -> Tensor:
    """The result with the strides of a tensor of its shape, which a graph of `torch.compile` expects."""
    if result.shape != tensor.shape:
        return result
    strides = torch.empty_like(tensor, device="meta").stride()
    if result.stride() == strides:
        return result
    return result.new_empty_strided(result.shape, strides).copy_(result)


def window_of(left: int | None, right: int | None) -> tuple[int, int] | None:
    """PyTorch's two numbers, None or -1 for all, as a window."""
    sides = (-1 if left is None else left, -1 if right is None else right)
    return None if sides == (-1, -1) else sides


def _hooks() -> Any:
    import torch.nn.attention as hooks

    if not hasattr(hooks, "register_flash_attention_impl"):
        raise RuntimeError(
            f"retrograd.compat.sdpa: PyTorch {torch.__version__} has no hook for other flash attentions; 2.11 has it"
        )
    return hooks
