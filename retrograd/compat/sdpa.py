"""PyTorch's own attention on retrograd's kernels, by PyTorch's registry of flash attention implementations.

After `install()`, `torch.nn.functional.scaled_dot_product_attention` and `torch.nn.attention.varlen.varlen_attn` launch
the kernels of `retrograd.attention` wherever PyTorch chooses its flash backend: on CUDA tensors in 16 bits, without a
mask. Other calls stay with PyTorch's other backends. `torch.nn.attention.sdpa_kernel` chooses between these, as ever.

- Gradients are bitwise reproducible.
- A causal mask is aligned at the last query and the last key, as in PyTorch's flash backend. `is_causal` of
  `scaled_dot_product_attention` is aligned at the first ones; PyTorch sends it here for as many keys as queries only.
- A query that sees no key has zeros as its result, and -inf as lse.
- Dropout takes its seed from PyTorch's generator, but drops other pairs than PyTorch's kernels.
- Refused: tables of pages (`block_table`) and masks for debugging; and where a gradient would be recorded, which
  PyTorch's backward operators would compute without them, `seqused_k` and slopes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.attention
from torch import Tensor
from torch.library import Library

from retrograd.compat.checks import refuse
from retrograd.compat.dropout import SEEDS
from retrograd.compat.flash_attn.packing import used_parts
from retrograd.core.errors import bad_value
from retrograd.core.torch.arguments import resolved, without_gaps
from retrograd.core.torch.autocast import no_autocast
from retrograd.core.torch.op import bind
from retrograd.core.torch.passes import backward_pass, shapes_of
from retrograd.ops.attention.op import OP

__all__ = ["install", "uninstall"]

NAME = "retrograd"
HOOK = (
    "register_flash_attention_impl",
    "activate_flash_attention_impl",
    "current_flash_attention_impl",
    "restore_flash_attention_impl",
)


def install() -> None:
    """Let PyTorch's flash backend on CUDA be retrograd's, under the name "retrograd".

    Raises:
        RuntimeError: this version of PyTorch has no registry of flash attention implementations.

    Example:
        >>> import torch.nn.attention, retrograd.compat.sdpa
        >>> retrograd.compat.sdpa.install()
        >>> torch.nn.attention.current_flash_attention_impl()
        'retrograd'
        >>> retrograd.compat.sdpa.uninstall()
    """
    hook = _hook()
    hook.register_flash_attention_impl(NAME, register_fn=Registered)
    hook.activate_flash_attention_impl(NAME)


def uninstall() -> None:
    """Undo `install`; does nothing where another implementation is active."""
    hook = _hook()
    if hook.current_flash_attention_impl() == NAME:
        hook.restore_flash_attention_impl()


def _hook() -> Any:
    hook = torch.nn.attention
    missing = [name for name in HOOK if not hasattr(hook, name)]
    if missing:
        lacks = f"torch {torch.__version__} has no torch.nn.attention.{missing[0]}"
        raise RuntimeError(f"retrograd.compat.sdpa: {lacks}; torch 2.11 and 2.13 have it")
    return hook


class Registered:
    """The operators below as those of `aten` for a dispatch key, until `remove`."""

    def __init__(self, key: str = "CUDA") -> None:
        self.library: Library | None = Library("aten", "IMPL", key)
        for name, function in OPERATORS.items():
            if hasattr(torch.ops.aten, name):  # torch 2.11 has not all of them
                self.library.impl(name, function, key)

    def remove(self) -> None:
        """Give the operators back to PyTorch."""
        if self.library is not None:
            self.library._destroy()
        self.library = None


def sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """`aten::_scaled_dot_product_flash_attention`: arrays are (batch, heads, steps, channels)."""
    me = "_scaled_dot_product_flash_attention"
    refuse(me, "", return_debug_mask=return_debug_mask)
    q, k, v = (array.transpose(1, 2) for array in (query, key, value))
    state = _random_state(query, dropout_p)
    options = _options(dropout_p, state, is_causal, None, None, scale)
    out, lse = _forward(q, k, v, **options)
    out = _laid_out(out.transpose(1, 2), query)
    return out, lse, None, None, query.shape[2], key.shape[2], state, _unused(state), query.new_empty(0)


def sdpa_backward(
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
    options = _options(dropout_p, philox_seed, is_causal, None, None, scale)
    dout, q, k, v, found = (array.transpose(1, 2) for array in (grad_out, query, key, value, out))
    gradients = _backward(dout, q, k, v, found, logsumexp, **options)
    return tuple(
        _laid_out(gradient.transpose(1, 2), array)
        for gradient, array in zip(gradients, (query, key, value), strict=True)
    )


def flash_forward(
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
) -> tuple[Tensor, ...]:
    """`aten::_flash_attention_forward`: (batch, steps, heads, channels), or packed (total, heads, channels)."""
    me = "_flash_attention_forward"
    refuse(me, "", return_debug_mask=return_debug_mask, block_table=block_table)
    if torch.is_grad_enabled() and any(array.requires_grad for array in (query, key, value)):
        refuse(me, " where a gradient is recorded", seqused_k=seqused_k, alibi_slopes=alibi_slopes)
    state = _random_state(query, dropout_p)
    options = _options(dropout_p, state, is_causal, window_size_left, window_size_right, scale)
    bounds = _boundaries(me, cum_seq_q, cum_seq_k)
    if bounds is None:
        refuse(me, " without cum_seq_k", seqused_k=seqused_k)
        out, lse = _forward(query, key, value, alibi_slopes=alibi_slopes, **options)
    else:
        if seqused_k is not None:
            refuse(me, " with seqused_k", alibi_slopes=alibi_slopes)
            bounds = used_parts(*bounds, None, seqused_k)
        sequences = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1], "alibi_slopes": alibi_slopes}
        out, lse = (array[0] for array in _forward(query[None], key[None], value[None], **sequences, **options))
    return _laid_out(out, query), lse, state, _unused(state), query.new_empty(0)


def flash_forward_into(out: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """`aten::_flash_attention_forward_no_dropout_inplace`: writes the result into `out`, and returns lse."""
    found, lse, *_ = flash_forward(*arguments, **options)
    out.copy_(found)
    return lse


def flash_backward(
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
) -> tuple[Tensor, ...]:
    """`aten::_flash_attention_backward`."""
    options = _options(dropout_p, rng_state, is_causal, window_size_left, window_size_right, scale)
    bounds = _boundaries("_flash_attention_backward", cum_seq_q, cum_seq_k)
    if bounds is None:
        gradients = _backward(grad_out, query, key, value, out, logsumexp, **options)
    else:
        dout, q, k, v, found, lse = (array[None] for array in (grad_out, query, key, value, out, logsumexp))
        sequences = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1]}
        gradients = [gradient[0] for gradient in _backward(dout, q, k, v, found, lse, **sequences, **options)]
    return tuple(map(_laid_out, gradients, (query, key, value)))


OPERATORS = {
    "_scaled_dot_product_flash_attention": sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": sdpa_backward,
    "_flash_attention_forward": flash_forward,
    "_flash_attention_forward_no_dropout_inplace": flash_forward_into,
    "_flash_attention_backward": flash_backward,
}


def _forward(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """out and lse, without a record for autograd: PyTorch's operators have their own."""
    with torch.no_grad(), no_autocast(q.device.type):
        out, lse = bind(OP)(*OP.complete({"q": q, "k": k, "v": v, **given, "return_lse": True}))
    assert out is not None
    assert lse is not None
    return out, lse


def _backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **given: Any) -> list[Tensor]:
    """The gradients of q, k and v, by the backward pass."""
    arrays, options = OP.complete({"q": q, "k": k, "v": v, **given})
    wanted = frozenset(("q", "k", "v"))
    chosen = backward_pass(OP, tuple(shapes_of(tuple(arrays.values()))), q.device, wanted, *options.values())
    inputs = {**arrays, "dout": resolved(dout), "out": out, "lse": lse}
    with torch.no_grad():
        found = chosen.run([inputs.get(name) for name in chosen.names])
    by_name = dict(zip(chosen.makes, found, strict=True))
    gradients = [by_name[name] for name in ("dq", "dk", "dv")]
    return [gradient for gradient in gradients if gradient is not None]


def _options(
    dropout_p: float, state: Tensor, causal: bool, left: int | None, right: int | None, scale: float | None
) -> dict[str, Any]:
    """The options of `retrograd.attention`, and the seed that a random state holds."""
    window = (-1 if left is None else left, -1 if right is None else right)
    options = {"causal": causal, "window": None if window == (-1, -1) else window, "scale": scale}
    if not dropout_p:
        return options
    return {**options, "dropout_p": dropout_p, "dropout_seed": state.view(torch.int64)[0].to(torch.int32)}


def _random_state(query: Tensor, dropout_p: float) -> Tensor:
    """(2,) uint64, as PyTorch's kernels return it: a seed from its generator, where something is dropped."""
    if not dropout_p:
        return query.new_empty(2, dtype=torch.uint64)
    return torch.randint(SEEDS, (2,), dtype=torch.int64, device=query.device).view(torch.uint64)


def _unused(state: Tensor) -> Tensor:
    """What PyTorch returns beside a random state, and does not read."""
    return state.new_empty(())


def _boundaries(me: str, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Boundaries of packed sequences; raises for those of queries or of keys alone."""
    if cum_seq_q is not None and cum_seq_k is not None:
        return without_gaps(cum_seq_q), without_gaps(cum_seq_k)
    for name, given, other in (("cum_seq_k", cum_seq_q, "cum_seq_q"), ("cum_seq_q", cum_seq_k, "cum_seq_k")):
        if given is not None:
            raise bad_value(me, name, None, f"boundaries, since {other} is given")
    return None


def _laid_out(result: Tensor, like: Tensor) -> Tensor:
    """A result with the strides that PyTorch's operators promise: those of the argument, where shapes are equal."""
    if result.shape != like.shape:
        return result
    wanted = torch.empty_like(like, dtype=result.dtype)
    return result if result.stride() == wanted.stride() else wanted.copy_(result)
