"""selective_scan for PyTorch: the public functions."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Complex, Float, Int32
from torch import Tensor

from retrograd.core.torch.arguments import check_tensors, params_of
from retrograd.core.torch.op import bind

from .op import OP
from .spec import UPDATE, check_update
from .update import update

_call = bind(OP)

Parameter = Float[Tensor, "D N"] | Complex[Tensor, "D N"]
Matrix = (
    Float[Tensor, "B T N"]
    | Complex[Tensor, "B T N"]
    | Float[Tensor, "B T G N"]
    | Complex[Tensor, "B T G N"]
    | Parameter
)
StepMatrix = Float[Tensor, "B N"] | Complex[Tensor, "B N"] | Float[Tensor, "B G N"] | Complex[Tensor, "B G N"]
States = Float[Tensor, "S D N"] | Complex[Tensor, "S D N"]


@overload
def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Parameter,
    B: Matrix,
    C: Matrix,
    *,
    D: Float[Tensor, " D"] | None = ...,
    z: Float[Tensor, "B T D"] | None = ...,
    dt_bias: Float[Tensor, " D"] | None = ...,
    dt_softplus: bool = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Float[Tensor, "B T D"]: ...


@overload
def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Parameter,
    B: Matrix,
    C: Matrix,
    *,
    D: Float[Tensor, " D"] | None = ...,
    z: Float[Tensor, "B T D"] | None = ...,
    dt_bias: Float[Tensor, " D"] | None = ...,
    dt_softplus: bool = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Float[Tensor, "B T D"], States]: ...


def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Parameter,
    B: Matrix,
    C: Matrix,
    *,
    D: Float[Tensor, " D"] | None = None,
    z: Float[Tensor, "B T D"] | None = None,
    dt_bias: Float[Tensor, " D"] | None = None,
    dt_softplus: bool = False,
    initial_state: States | None = None,
    cu_seqlens: Int32[Tensor, " S+1"] | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-1's selective state space: a linear recurrence whose step size, input and output depend on the step.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, for every channel::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]        h[-1] = initial_state, or 0
        y[t] = <C[t], h[t]> + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    The arithmetic and the states are in float32. All gradients are bitwise reproducible; a sequence's results and
    gradients depend neither on its batch nor on what it is packed with. For its backward pass the forward pass keeps
    the states of every 2 N-th step, about 2 bytes a channel and step.

    Args:
        x: (B, T, D), float32, bfloat16 or float16, any strides: a transposed (B, D, T) is fine. float64 runs on the
            portable path.
        dt: (B, T, D), like x or float32.
        A: (D, N), float32; at most 256 states. With complex64 A, B and C are complex64, the states too, and
            y = 2 Re <C, h> (without conjugation) as for one of each pair of conjugate states; portable path alone.
        B: (B, T, N), or (B, T, G, N) where channel d uses group d // (D / G); like x or float32. Or constant in time:
            (D, N), float32.
        C: like B; the two need not have the same of these forms.
        D: (D,), float32: a skip from x to y.
        z: (B, T, D), like x or float32: a gate.
        dt_bias: (D,), float32, added to dt.
        dt_softplus: whether softplus makes delta positive.
        initial_state: (B, D, N), float32 (complex64 for complex A); zeros by default.
        cu_seqlens: (S + 1,) int32, for B = 1: x holds S sequences one after another, the i-th from step cu_seqlens[i]
            up to cu_seqlens[i + 1]. States are then (S, D, N). Steps outside of every sequence give zeros.
            The numbers must not fall or pass T: a CPU tells, a GPU would have to wait for it and does not look.
        return_final_state: also return the state after the last step.

    Returns:
        out (B, T, D) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, D, N) in float32
        (complex64). An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), algorithm 2.

    Example:
        >>> import torch, retrograd
        >>> x, dt = torch.randn(2, 100, 64, requires_grad=True), torch.randn(2, 100, 64)
        >>> A, B, C = -torch.rand(64, 16), torch.randn(2, 100, 16), torch.randn(2, 100, 16)
        >>> y, state = retrograd.selective_scan(x, dt, A, B, C, dt_softplus=True, return_final_state=True)
        >>> (y.sum() + state.sum()).backward()
        >>> x.grad.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64, 16]))
    """
    y, final_state = _call(
        (x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens),
        (dt_softplus, return_final_state),
    )
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]


def selective_state_update(
    state: States,
    x: Float[Tensor, "B D"],
    dt: Float[Tensor, "B D"],
    A: Parameter,
    B: StepMatrix,
    C: StepMatrix,
    *,
    D: Float[Tensor, " D"] | None = None,
    z: Float[Tensor, "B D"] | None = None,
    dt_bias: Float[Tensor, " D"] | None = None,
    dt_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """One step of `selective_scan`, for generation: (y, the new state). Pure; the state that came in is not changed.

    It is `selective_scan` of one step: it has the bits that the step has in a longer sequence, and the same gradients.

    Args:
        state: (B, D, N), float32 (complex64 for complex A): zeros at first, or a final state of `selective_scan`.
        x: (B, D), float32, bfloat16, float16 or float64.
        dt: (B, D), like x or float32.
        A, D, dt_bias, dt_softplus: as in `selective_scan`.
        B: (B, N), or (B, G, N) where channel d uses group d // (D / G); like x or float32, complex64 for complex A.
        C: like B; the two need not have the same of these forms.
        z: (B, D), like x or float32.

    Beside an x in float64 what is float32 here is float64, and complex64 is complex128, as in `selective_scan`.

    Returns:
        y (B, D) in the dtype of x, and the new state in the dtype of the old one.

    Raises:
        ValueError, TypeError: as `selective_scan`.

    Example:
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 64, 16), -torch.rand(64, 16)
        >>> x, dt, B, C = torch.randn(2, 64), torch.randn(2, 64), torch.randn(2, 16), torch.randn(2, 16)
        >>> y, state = retrograd.selective_state_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 16]))
    """
    arrays = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    check_tensors(UPDATE, arrays, required=6)
    check_update(params_of(arrays), dt_softplus)
    return update(_call, arrays, dt_softplus)
