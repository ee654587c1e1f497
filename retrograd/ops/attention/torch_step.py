"""`attention_step_`: a step of generation over caches of keys and values, for PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32
from torch import Tensor

from retrograd.core.errors import as_tuple, bad_value
from retrograd.core.op import Implementation, Op, names
from retrograd.core.torch.checks import checker
from retrograd.core.torch.op import bind, by_kernels
from retrograd.core.torch.rotary import rotated

from .op import OP
from .step import Append, Query, Step

APPEND = Op(
    Append,
    __package__,
    (Implementation(f"{__package__}.triton.append", takes=names("q k v cache_k cache_v steps cos sin interleaved")),),
)
QUERY = Op(
    Query,
    __package__,
    (Implementation(f"{__package__}.hopper.query", takes=names("q k v after window scale softcap")),),
)
_check = checker(Step)
_attention = bind(OP)


def attention_step_(
    q: Float[Tensor, "B H D"],
    k: Float[Tensor, "B G D"],
    v: Float[Tensor, "B G V"],
    cache_k: Float[Tensor, "B C G D"],
    cache_v: Float[Tensor, "B C G V"],
    steps: Int32[Tensor, " B"],
    *,
    cos: Float[Tensor, "C R"] | None = None,
    sin: Float[Tensor, "C R"] | None = None,
    interleaved: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "B H V"], Int32[Tensor, " B"]]:
    """Causal attention of one more step of each sequence over the caches, which get its keys and values.

    Rows of the caches may have different numbers of steps. The result has the bits of `attention` on the whole
    sequence, with q and k rotated as given. No gradient is recorded.

    Args:
        q: (B, H, D), float32, bfloat16, float16 or float64.
        k: (B, G, D) in the dtype of q; G divides H.
        v: (B, G, V) in the dtype of q.
        cache_k: (B, capacity, G, D), dense, in the dtype of q: earlier keys, rotated. Overwritten.
        cache_v: (B, capacity, G, V), likewise.
        steps: (B,) int32, how many steps each row of the caches has.
        cos, sin: (capacity, R), float32: of the angles by which R pairs of channels of q and k are rotated at each
            position; None where they are not.
        interleaved: whether pairs are channels 2 i and 2 i + 1, not i and i + R.
        window, scale, softcap: as in `attention`.

    Returns:
        out (B, H, V) in the dtype of q, and steps + 1. A row without room has NaN as its result, in this call and all
        later ones, and its last slot is overwritten; on a CPU it is an error.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.4.2.

    Example:
        >>> import torch, retrograd
        >>> q, k, v = torch.randn(2, 8, 64), torch.randn(2, 2, 64), torch.randn(2, 2, 64)
        >>> cache_k, cache_v = torch.zeros(2, 100, 2, 64), torch.zeros(2, 100, 2, 64)
        >>> out, steps = retrograd.attention_step_(q, k, v, cache_k, cache_v, torch.tensor([0, 0], dtype=torch.int32))
        >>> bool(torch.allclose(out[:, 0], v[:, 0])), steps
        (True, tensor([1, 1], dtype=torch.int32))
    """
    given = {"q": q, "k": k, "v": v, "cache_k": cache_k, "cache_v": cache_v, "steps": steps, "cos": cos, "sin": sin}
    options = {"interleaved": interleaved, "window": as_tuple(window), "scale": scale, "softcap": softcap}
    arrays, options = _check(given, options)
    for name in ("cache_k", "cache_v"):
        if not arrays[name].is_contiguous():
            raise bad_value("attention_step_", f"{name}.stride()", arrays[name].stride(), "those of a dense array")
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arrays.values()):
        raise bad_value("attention_step_", "requires_grad", True, "False, or a call under torch.no_grad()")
    del options["interleaved"]
    found = by_kernels(APPEND, tuple(arrays.values()), (interleaved,))
    queries, after, bounds_q, bounds_k = found or append_portable(**arrays, interleaved=interleaved)
    caches = arrays["cache_k"], arrays["cache_v"]
    if found := by_kernels(QUERY, (queries, *caches, after), tuple(options.values())):
        return found[0], after
    packed = {
        "q": queries[None],
        "k": caches[0].flatten(0, 1)[None],
        "v": caches[1].flatten(0, 1)[None],
        "cu_seqlens_q": bounds_q.flatten(),
        "cu_seqlens_k": bounds_k.flatten(),
    }
    out = _attention(*OP.complete({**packed, **options, "causal": True}))[0]
    assert out is not None
    return out[0], after


def append_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    steps: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    interleaved: bool,
) -> tuple[Tensor, ...]:
    """The results of `Append` without a kernel."""
    batch, capacity = cache_k.shape[:2]
    if steps.device.type == "cpu" and batch and int(steps.max()) >= capacity:
        raise bad_value("attention_step_", "steps", int(steps.max()), f"less than the capacity, {capacity}")
    row = torch.arange(batch + 1, device=q.device, dtype=torch.int32)
    slot = steps.clamp(max=capacity - 1).long()
    if cos is not None and sin is not None:
        own = cos[slot][:, None], sin[slot][:, None]
        q, k = rotated(q, *own, interleaved), rotated(k, *own, interleaved)
    cache_k[row[:-1], slot] = k
    cache_v[row[:-1], slot] = v
    q = q.masked_fill((steps >= capacity)[:, None, None], torch.nan)
    first = row * capacity
    used = F.pad(slot.int() + 1, (0, 1))
    bounds_q = torch.stack((row, (row + 1).clamp(max=batch)), 1)
    return q, steps + 1, bounds_q, torch.stack((first, first + used), 1)
