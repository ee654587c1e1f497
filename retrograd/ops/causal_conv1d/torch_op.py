"""causal_conv1d for PyTorch: the public functions."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Float, Int32
from torch import Tensor

from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.op import bind

from .op import OP
from .update import UPDATE, update

_call = bind(OP)


@overload
def causal_conv1d(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = ...,
    *,
    activation: Literal["silu"] | None = ...,
    initial_state: Float[Tensor, "S D W-1"] | None = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Float[Tensor, "B T D"]: ...


@overload
def causal_conv1d(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = ...,
    *,
    activation: Literal["silu"] | None = ...,
    initial_state: Float[Tensor, "S D W-1"] | None = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "S D W-1"]]: ...


def causal_conv1d(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
    initial_state: Float[Tensor, "S D W-1"] | None = None,
    cu_seqlens: Int32[Tensor, " S+1"] | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Depthwise causal convolution along time: each channel has a filter of its own over its last W inputs.

    ::

        y[t] = act(bias + sum over k of weight[:, k] * x[t - (W - 1) + k])

    weight[:, W - 1] belongs to the newest input. Sums are taken in float32, in the order of k. All gradients are
    bitwise reproducible; a row's results and gradients depend neither on its batch nor on what it is packed with.

    Args:
        x: (B, T, D), float32, bfloat16 or float16, any strides, a (B, D, T) tensor seen as (B, T, D) among them.
            float64 runs on the portable path.
        weight: (D, W), float32 or the dtype of x. Kernels run for W of 2 to 4, the portable path for 1 to 64.
        bias: (D,), float32 or the dtype of x.
        activation: "silu" or None.
        initial_state: (B, D, W - 1) in the dtype of x: the inputs before the first, oldest first; zeros by default.
        cu_seqlens: (S + 1,) int32, for B = 1: x holds S sequences one after another, the i-th from step cu_seqlens[i]
            up to cu_seqlens[i + 1]. States are then (S, D, W - 1). Steps outside of every sequence give zeros.
            The numbers must not fall or pass T: a CPU tells, a GPU would have to wait for it and does not look.
        return_final_state: also return the last W - 1 inputs, to go on from.

    Returns:
        y (B, T, D) in the dtype of x; with `return_final_state`, (y, final_state), the state as `initial_state`.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: the short convolution of Mamba (Gu and Dao, 2023).

    Example:
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.randn(64, 4, requires_grad=True)
        >>> y = retrograd.causal_conv1d(x, weight, activation="silu")
        >>> y.sum().backward()
        >>> weight.grad.shape
        torch.Size([64, 4])
    """
    y, final_state = _call((x, weight, bias, initial_state, cu_seqlens), (activation, return_final_state))
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]


def causal_conv1d_update(
    x: Float[Tensor, "B D"] | Float[Tensor, "B T D"],
    state: Float[Tensor, "B D W-1"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
) -> tuple[Tensor, Float[Tensor, "B D W-1"]]:
    """One step of generation, or a few: `causal_conv1d` that goes on from a state, to the bit, with its gradients.

    Args:
        x: (B, D), or (B, T, D) for T steps.
        state: (B, D, W - 1) in the dtype of x: the inputs before, oldest first. It is left as it is.
        weight, bias, activation: as in `causal_conv1d`.

    Returns:
        (y, new_state): y has the shape of x.

    Raises:
        ValueError, TypeError: as `causal_conv1d`.

    Example:
        >>> import torch, retrograd
        >>> x, state, weight = torch.randn(2, 64), torch.zeros(2, 64, 3), torch.randn(64, 4)
        >>> y, state = retrograd.causal_conv1d_update(x, state, weight)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 3]))
    """
    tensors = {"x": x, "state": state, "weight": weight, "bias": bias}
    check_tensors(UPDATE, tensors, required=3)
    return update(causal_conv1d, **tensors, activation=activation)
