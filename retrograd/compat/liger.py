"""RMSNorm under the names and signatures of liger_kernel 0.8.5, on `retrograd.rms_norm`.

What liger's arguments mean here:

- `casting_mode` says which intermediate values liger rounds to the dtype of X: with "gemma" none, with "llama" one,
  before it multiplies by the weight, with "none" all. Here every mode computes in float32 and rounds the result once.
  That is "gemma", and for a float32 X equal to all three. For bfloat16 and float16 the results of the other two modes
  differ from liger's by these roundings.
- `in_place` lets liger write the gradient of X over the incoming gradient, which saves memory and is wrong if that
  gradient is read again. Here the incoming gradient is never written to.
- `offset` is added to the weight. Without a weight it is not used, as in liger.
- Gradients are bitwise reproducible.
- A DTensor is refused; liger gathers it with `full_tensor()`, here the caller has to.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from retrograd import rms_norm
from retrograd.compat.dtypes import REAL, widened
from retrograd.core.errors import bad_value
from retrograd.core.torch.arguments import check_tensors

__all__ = [
    "LigerRMSNorm",
    "LigerRMSNormForGemma",
    "LigerRMSNormForGemma2",
    "LigerRMSNormForGemma3",
    "LigerRMSNormForGemma4",
    "LigerRMSNormForGlm4",
    "LigerRMSNormForOlmo2",
    "LigerRMSNormForQwen3Next",
    "liger_fused_add_rms_norm",
    "liger_rms_norm",
]

CASTING_MODES = ("llama", "gemma", "none")
CASTING_NUMBERS = (0, 1, -1)  # liger's functions accept these numbers for the same three
INITIAL = {"ones": torch.ones, "zeros": torch.zeros}


def liger_rms_norm(
    X: Float[Tensor, "*batch N"],
    W: Float[Tensor, " N"] | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> Float[Tensor, "*batch N"]:
    """X / sqrt(mean(X^2) + eps) * (W + offset), the mean over the last dimension.

    Args:
        X: (..., N), float32, bfloat16 or float16, any strides.
        W: (N,), float32, bfloat16 or float16; or None, for no weight.
        eps: added to the mean square.
        offset: added to W, in float32; not used without W.
        casting_mode: "llama", "gemma" or "none"; all compute as "gemma", see the docstring of this module.
        in_place: no effect; the incoming gradient is never written to.

    Returns:
        The shape and dtype of X.

    Raises:
        ValueError, TypeError: for a casting mode that liger does not have, and whatever `retrograd.rms_norm` refuses;
            its messages name X x, W weight and offset weight_offset.

    Example:
        >>> import torch
        >>> from retrograd.compat.liger import liger_rms_norm
        >>> x, w = torch.randn(2, 16, 64), torch.zeros(64, requires_grad=True)
        >>> liger_rms_norm(x, w, 1e-6, offset=1.0, casting_mode="gemma").sum().backward()
        >>> w.grad.shape
        torch.Size([64])
    """
    _check("liger_rms_norm", casting_mode, W, X=X)
    return rms_norm(X, widened(W, X.dtype), eps=eps, weight_offset=0.0 if W is None else offset)


def liger_fused_add_rms_norm(
    X: Float[Tensor, "*batch N"],
    R: Float[Tensor, "*batch N"],
    W: Float[Tensor, " N"] | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N"]]:
    """S = X + R, and S / sqrt(mean(S^2) + eps) * (W + offset), in one kernel.

    Args:
        X: (..., N), float32, bfloat16 or float16, any strides.
        R: like X, of any of the dtypes: the residual stream.
        W, eps, offset, casting_mode, in_place: as in `liger_rms_norm`.

    Returns:
        (Y, S), each of the shape and dtype of X. S is rounded to the wider dtype of X and R before it is normalised.

    Raises:
        ValueError, TypeError: as `liger_rms_norm`; the messages name R residual.

    Example:
        >>> import torch
        >>> from retrograd.compat.liger import liger_fused_add_rms_norm
        >>> x, stream = torch.randn(2, 16, 64), torch.randn(2, 16, 64)
        >>> y, stream = liger_fused_add_rms_norm(x, stream, torch.ones(64), 1e-6)
        >>> y.shape, stream.shape
        (torch.Size([2, 16, 64]), torch.Size([2, 16, 64]))
    """
    _check("liger_fused_add_rms_norm", casting_mode, W, X=X, R=R)
    stream = R.to(torch.promote_types(X.dtype, R.dtype)) if X.dtype in REAL and R.dtype in REAL else R
    offset = 0.0 if W is None else offset
    Y, S = rms_norm(X, widened(W, X.dtype), residual=stream, eps=eps, weight_offset=offset, prenorm=True)
    return Y, S.to(X.dtype)


class LigerRMSNorm(nn.Module):
    """RMSNorm of the last dimension with a weight: `liger_rms_norm` as a module.

    Its state has the key "weight", as liger's module and the norms of Llama, Gemma and others in transformers have.

    Args:
        hidden_size: N, the size of the last dimension.
        eps: added to the mean square.
        offset: added to the weight; 1.0 with `init_fn` "zeros" is Gemma's norm. Not used without a weight.
        casting_mode: "llama", "gemma" or "none"; all compute as "gemma", see the docstring of this module.
        init_fn: initial values of the weight, "ones" or "zeros".
        in_place: no effect; the incoming gradient is never written to.
        row_mode: chooses between two of liger's kernels with the same result; no effect here.
        elementwise_affine: whether there is a weight.

    Raises:
        ValueError: for a casting mode or an `init_fn` that liger does not have.

    Example:
        >>> import torch
        >>> from retrograd.compat.liger import LigerRMSNorm
        >>> norm = LigerRMSNorm(64)
        >>> norm(torch.randn(2, 16, 64)).shape
        torch.Size([2, 16, 64])
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        _check("LigerRMSNorm", casting_mode)
        if init_fn not in tuple(INITIAL):
            raise bad_value("LigerRMSNorm", "init_fn", init_fn, " or ".join(map(repr, INITIAL)))
        self.register_parameter("weight", nn.Parameter(INITIAL[init_fn](hidden_size)) if elementwise_affine else None)
        self.variance_epsilon = eps
        self.offset = offset
        self.casting_mode = casting_mode
        self.in_place = in_place
        self.row_mode = row_mode
        self.elementwise_affine = elementwise_affine

    def forward(self, hidden_states: Float[Tensor, "*batch N"]) -> Float[Tensor, "*batch N"]:
        """Normalise; the result has the dtype of `hidden_states`."""
        return liger_rms_norm(
            hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode, self.in_place
        )

    def extra_repr(self) -> str:
        """The weight's shape and the options."""
        shape = None if self.weight is None else tuple(self.weight.shape)
        return f"{shape}, eps={self.variance_epsilon}, offset={self.offset}, casting_mode={self.casting_mode!r}"


class LigerRMSNormForOlmo2(LigerRMSNorm):
    """The same."""


class LigerRMSNormForGlm4(LigerRMSNorm):
    """The same."""


class LigerRMSNormForGemma(LigerRMSNorm):
    """Gemma's norm: times 1 + weight, which begins as zeros."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str = "gemma",
        init_fn: str = "zeros",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma2(LigerRMSNormForGemma):
    """As Gemma's."""


class LigerRMSNormForQwen3Next(LigerRMSNormForGemma):
    """As Gemma's."""


class LigerRMSNormForGemma3(LigerRMSNormForGemma):
    """As Gemma's; its first argument is `dim`."""

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str = "gemma",
        init_fn: str = "zeros",
        in_place: bool = False,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """Gemma 4's norm: times its weight, or without one (`with_scale=False`)."""

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "gemma",
        init_fn: str = "ones",
        in_place: bool = False,
        with_scale: bool = True,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale)
        self.with_scale = with_scale


def _check(name: str, casting_mode: Any, weight: Any = None, **tensors: Any) -> None:
    """Raise for an argument that is no tensor, and for an unknown casting mode."""
    check_tensors(name, tensors | {"W": weight}, required=len(tensors))
    if not isinstance(casting_mode, str | int) or casting_mode not in (*CASTING_MODES, *CASTING_NUMBERS):
        raise bad_value(name, "casting_mode", casting_mode, " or ".join(map(repr, CASTING_MODES)))
