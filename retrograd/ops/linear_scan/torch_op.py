"""linear_scan for PyTorch: the public function."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Complex, Float, Int32
from torch import Tensor

from retrograd.core.torch_op import bind

from .op import OP

_call = bind(OP)

Decays = Float[Tensor, "#B T #D"] | Complex[Tensor, "#B T #D"]
Inputs = Float[Tensor, "B T D"] | Complex[Tensor, "B T D"]
States = Float[Tensor, "S D"] | Complex[Tensor, "S D"]


@overload
def linear_scan(
    a: Decays,
    b: Inputs,
    *,
    initial_state: States | None = ...,
    reverse: bool = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Inputs: ...


@overload
def linear_scan(
    a: Decays,
    b: Inputs,
    *,
    initial_state: States | None = ...,
    reverse: bool = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Inputs, States]: ...


def linear_scan(
    a: Decays,
    b: Inputs,
    *,
    initial_state: States | None = None,
    reverse: bool = False,
    cu_seqlens: Int32[Tensor, " S+1"] | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Linear recurrence along time, each channel by itself.

    ::

        h[t] = a[t] * h[t - 1] + b[t]        h[-1] = initial_state, or 0

    The arithmetic is in float32 (complex64), whatever the dtypes; no logarithms, so decays of exactly 0 and 1 are
    exact. All gradients are bitwise reproducible; a sequence's results and gradients depend neither on its batch nor on
    what it is packed with. The product of a over a few thousand neighbouring steps is formed and must not overflow.

    Args:
        a: (B, T, D), or of size 1 along B, D or both, for decays that rows or channels share. Any strides.
        b: (B, T, D), any strides. a and b are each float32, bfloat16 or float16, or both are complex64. float64 and
            complex128 run on the portable path.
        initial_state: (B, D), float32 or the dtype of b (complex64 for complex b); zeros by default.
        reverse: go from the last step to the first: h[t] = a[t] * h[t + 1] + b[t].
        cu_seqlens: (S + 1,) int32, for B = 1: b holds S sequences one after another, the i-th from step cu_seqlens[i]
            up to cu_seqlens[i + 1]. States are then (S, D). Steps outside of every sequence give zeros.
            The numbers must not fall or pass T: a CPU tells, a GPU would have to wait for it and does not look.
        return_final_state: also return the state after the last step (the first, with `reverse`).

    Returns:
        h (B, T, D) in the dtype of b; with `return_final_state`, (h, final_state), the state (B, D) in float32, or
        complex64. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4; the gradient is in the room's README.

    Example:
        >>> import torch, retrograd
        >>> a, b = torch.rand(2, 100, 64, requires_grad=True), torch.randn(2, 100, 64, requires_grad=True)
        >>> h, state = retrograd.linear_scan(a, b, return_final_state=True)
        >>> (h.sum() + state.sum()).backward()
        >>> a.grad.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64]))
    """
    h, final_state = _call((a, b, initial_state, cu_seqlens), (reverse, return_final_state))
    return (h, final_state) if return_final_state else h  # type: ignore[return-value]
