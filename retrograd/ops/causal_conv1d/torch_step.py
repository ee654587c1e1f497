"""`causal_conv1d_update_`: a step of generation that overwrites the state it goes on from, for PyTorch."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from retrograd.core.op import Implementation, Op, names
from retrograd.core.torch.arguments import stay
from retrograd.core.torch.checks import checker
from retrograd.core.torch.op import bind, by_kernels
from retrograd.core.torch.xp import torch_namespace

from .op import OP
from .update import StepInPlace, update

UPDATE = Op(
    StepInPlace,
    __package__,
    (Implementation(f"{__package__}.triton.update", takes=names("x state weight bias activation")),),
)
_check = checker(StepInPlace)
_causal_conv1d = bind(OP)


def causal_conv1d_update_(
    x: Float[Tensor, "B D"] | Float[Tensor, "B T D"],
    state: Float[Tensor, "B D W_minus_1"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
) -> tuple[Float[Tensor, "B D"] | Float[Tensor, "B T D"], Float[Tensor, "B D W_minus_1"]]:
    """`causal_conv1d_update`, which may overwrite `state`: go on from the state that it returns.

    Where `causal_conv1d` runs on its kernels, a single step in place is one kernel, with the same bits. Elsewhere, and
    where a gradient is recorded, it is `causal_conv1d_update`.

    Args:
        x, state, weight, bias, activation: as in `causal_conv1d_update`.

    Returns:
        y in the shape of x, and the new state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> x, state, weight = torch.randn(2, 64), torch.zeros(2, 64, 3), torch.randn(64, 4)
        >>> y, state = retrograd.causal_conv1d_update_(x, state, weight)
        >>> y.shape, state.shape
        (torch.Size([2, 64]), torch.Size([2, 64, 3]))
    """
    given = {"x": x, "state": state, "weight": weight, "bias": bias}
    arrays, options = _check(given, {"activation": activation})
    stays = stay({"state": state}, arrays)
    found = by_kernels(UPDATE, tuple(arrays.values()), tuple(options.values())) if stays else None
    if found is not None:
        return found[0], state
    return update(torch_namespace(), _causal_conv1d, arrays, options)
