"""ssd for PyTorch: the public functions."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Float, Int32
from torch import Tensor

from retrograd.core.torch.arguments import check_tensors, params_of
from retrograd.core.torch.op import bind
from retrograd.core.xp import torch_namespace

from . import generation, portable
from .generation import SsdWindow
from .op import OP
from .spec import NOT_NEGATIVE, PREFILL, STEP, UPDATE, as_tuple, check_prefill, check_step, check_update

_call = bind(OP)

Skip = Float[Tensor, " H"] | Float[Tensor, "H P"]
States = Float[Tensor, "S H P N"]
Limit = tuple[float, float]


@overload
def ssd(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Skip | None = ...,
    z: Float[Tensor, "B T H P"] | None = ...,
    dt_bias: Float[Tensor, " H"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: Limit = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Float[Tensor, "B T H P"]: ...


@overload
def ssd(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Skip | None = ...,
    z: Float[Tensor, "B T H P"] | None = ...,
    dt_bias: Float[Tensor, " H"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: Limit = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[Tensor, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Float[Tensor, "B T H P"], States]: ...


def ssd(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B T H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
    initial_state: States | None = None,
    cu_seqlens: Int32[Tensor, " S+1"] | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-2's state space dual: a linear recurrence with one decay a head, computed as matrix products.

    With delta = softplus(dt + dt_bias), or dt + dt_bias without `dt_softplus`, moved into `dt_limit`, for every head,
    whose state h is (P, N)::

        h[t] = exp(delta[t] A) h[t - 1] + delta[t] x[t] B[t]^T      h[-1] = initial_state, or 0
        y[t] = h[t] C[t] + D x[t]
        out[t] = y[t] silu(z[t])                                    y[t] without z

    Sums and states are in float32; what is multiplied in matrix products is rounded to the dtype of x, B and C, or
    stays in float32 where these differ. All gradients are bitwise reproducible; a sequence's results and gradients
    depend neither on its batch nor on what it is packed with. A row of the result depends on no later step, if all
    values are finite: one that is not may spoil up to 63 rows before it. For its backward pass the forward pass keeps
    the state of every 128th step (256th above N = 128): of a long sequence, where x, B and C have one dtype, at most as
    many bytes as x has.

    Args:
        x: (B, T, H, P), float32, bfloat16 or float16, any strides; P up to 256. float64 runs on the portable path.
        dt: (B, T, H), like x or float32.
        A: (H,), float32.
        B: (B, T, G, N), where head h uses group h // (H / G); N up to 256; like x or float32.
        C: as B.
        D: (H,) or (H, P), float32: a skip from x to y.
        z: (B, T, H, P), like x or float32: a gate.
        dt_bias: (H,), float32, added to dt.
        dt_softplus: whether softplus makes delta positive.
        dt_limit: the least and the largest delta; what lies outside is moved to them, and has no gradient. By default
            0 and infinity: without `dt_softplus` a negative step becomes 0.
        initial_state: (B, H, P, N), float32; zeros by default.
        cu_seqlens: (S + 1,) int32, for B = 1: x holds S sequences one after another, the i-th from step cu_seqlens[i]
            up to cu_seqlens[i + 1]. States are then (S, H, P, N). Steps outside of every sequence give zeros.
            The numbers must not fall or pass T: a CPU tells, a GPU would have to wait for it and does not look.
        return_final_state: also return the state after the last step.

    Beside an x in float64 what is float32 here is float64.

    Returns:
        out (B, T, H, P) in the dtype of x; with `return_final_state`, (out, final_state), the state (B, H, P, N) in
        float32. An empty sequence's final state is its initial state.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
    Space Duality (2024), section 6.

    Example:
        >>> import torch, retrograd
        >>> x, dt = torch.randn(2, 100, 8, 64, requires_grad=True), torch.randn(2, 100, 8)
        >>> A, B, C = -torch.rand(8), torch.randn(2, 100, 1, 128), torch.randn(2, 100, 1, 128)
        >>> y, state = retrograd.ssd(x, dt, A, B, C, dt_softplus=True, return_final_state=True)
        >>> (y.sum() + state.sum()).backward()
        >>> x.grad.shape, state.shape
        (torch.Size([2, 100, 8, 64]), torch.Size([2, 8, 64, 128]))
    """
    y, final_state = _call(
        (x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens),
        (dt_softplus, as_tuple(dt_limit), return_final_state),
    )
    return (y, final_state) if return_final_state else y  # type: ignore[return-value]


def ssd_update(
    state: States,
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
) -> tuple[Tensor, Tensor]:
    """One step of `ssd`, for generation: (y, the new state). Pure; the state that came in is not changed.

    The plain recurrence, in float32, in PyTorch operations, so that `torch.compile` fuses it. Its rounding is not that
    of `ssd`, which multiplies blocks of steps: `ssd_step` gives the bits of `ssd`. No gradient is promised.

    Args:
        state: (B, H, P, N), float32: zeros at first, or a final state of `ssd`.
        x: (B, H, P), float32, bfloat16, float16 or float64.
        dt: (B, H), like x or float32.
        A, D, dt_bias, dt_softplus, dt_limit: as in `ssd`.
        B: (B, G, N), where head h uses group h // (H / G); like x or float32.
        C: as B.
        z: (B, H, P), like x or float32.

    Beside an x in float64 what is float32 here is float64.

    Returns:
        y (B, H, P) in the dtype of x, and the new state in the dtype of the old one.

    Raises:
        ValueError, TypeError: as `ssd`.

    Example:
        >>> import torch, retrograd
        >>> state, A = torch.zeros(2, 8, 64, 128), -torch.rand(8)
        >>> x, dt, B, C = torch.randn(2, 8, 64), torch.randn(2, 8), torch.randn(2, 1, 128), torch.randn(2, 1, 128)
        >>> y, state = retrograd.ssd_update(state, x, dt, A, B, C, dt_softplus=True)
        >>> y.shape, state.shape
        (torch.Size([2, 8, 64]), torch.Size([2, 8, 64, 128]))
    """
    arrays = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    check_tensors(UPDATE, arrays, required=6)
    dt_limit = as_tuple(dt_limit)
    check_update(params_of(arrays), dt_softplus, dt_limit)
    y, new = portable.update(torch_namespace(), **arrays, dt_softplus=dt_softplus, dt_limit=dt_limit)
    return y.to(x.dtype), new


def ssd_prefill(
    x: Float[Tensor, "B T H P"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B T G N"],
    C: Float[Tensor, "B T G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B T H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
    initial_state: States | None = None,
) -> tuple[Float[Tensor, "B T H P"], SsdWindow]:
    """`ssd` on the beginning of a text, and the window from which `ssd_step` goes on.

    Args:
        x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, initial_state: as in `ssd`; any T, 0 too.

    Returns:
        y (B, T, H, P), with the bits of `ssd` on all steps, and an `SsdWindow`.

    Raises:
        ValueError, TypeError: as `ssd`.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(2, 200, 8, 64), torch.randn(2, 200, 8), -torch.rand(8)
        >>> B, C = torch.randn(2, 200, 1, 128), torch.randn(2, 200, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :150], dt[:, :150], A, B[:, :150], C[:, :150], dt_softplus=True)
        >>> window.steps
        tensor([22, 22], dtype=torch.int32)
    """
    arrays = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays["initial_state"] = initial_state
    check_tensors(PREFILL, arrays, required=5)
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    check_prefill(params_of(arrays), **options)
    return generation.prefill(torch_namespace(), ssd, arrays, options)


def ssd_step(
    window: SsdWindow,
    x: Float[Tensor, "B H P"],
    dt: Float[Tensor, "B H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B G N"],
    C: Float[Tensor, "B G N"],
    *,
    D: Skip | None = None,
    z: Float[Tensor, "B H P"] | None = None,
    dt_bias: Float[Tensor, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
) -> tuple[Float[Tensor, "B H P"], SsdWindow]:
    """One step of generation with the bits of training: (y, the window behind it).

    What `ssd` on the whole sequence gives at this step, to the bit, for a price: a call of `ssd` on 128 steps.
    Where that matters less than time, see `ssd_update`. Sequences of a batch may be at different steps. Shapes do not
    depend on the step, so that it can be captured in a CUDA graph. Values have to be finite.

    Args:
        window: of `ssd_prefill`, or of the step before; A and all that follows it have to be the same in all of these.
        x: (B, H, P), in the dtype of the window's, as dt, B and C are.
        dt: (B, H).
        A, D, dt_bias, dt_softplus, dt_limit: as in `ssd`.
        B: (B, G, N).
        C: as B.
        z: (B, H, P), like x or float32.

    Returns:
        y (B, H, P) in the dtype of x, and the new window.

    Raises:
        ValueError, TypeError: as `ssd`.

    Example:
        >>> import torch, retrograd
        >>> x, dt, A = torch.randn(1, 5, 8, 64), torch.randn(1, 5, 8), -torch.rand(8)
        >>> B, C = torch.randn(1, 5, 1, 128), torch.randn(1, 5, 1, 128)
        >>> y, window = retrograd.ssd_prefill(x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], dt_softplus=True)
        >>> last, window = retrograd.ssd_step(window, x[:, 4], dt[:, 4], A, B[:, 4], C[:, 4], dt_softplus=True)
        >>> bool((last == retrograd.ssd(x, dt, A, B, C, dt_softplus=True)[:, 4]).all())
        True
    """
    kept = generation.arrays_of_window(window)
    arrays = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    check_tensors(STEP, kept | arrays, required=11)
    check_step(params_of(arrays), params_of(kept), dt_softplus, as_tuple(dt_limit))
    rows = {"x": x, "dt": dt, "B": B, "C": C}
    shared = {"A": A, "D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    return generation.step(torch_namespace(), ssd, window, rows, shared, z)
