"""`gated_delta_rule_update_`: a step of generation that overwrites the state that it goes on from, for PyTorch."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from retrograd.core.op import Implementation, Op, names
from retrograd.core.torch.arguments import stay
from retrograd.core.torch.checks import checker
from retrograd.core.torch.op import bind, by_kernels
from retrograd.core.torch.xp import torch_namespace

from .generation import GATED_DELTA_RULE_UPDATE
from .op import OP
from .steps import UpdateInPlace

UPDATE = Op(
    UpdateInPlace,
    __package__,
    (Implementation(f"{__package__}.triton.update", takes=names("state q k v g beta scale normalize_qk")),),
)
_ARGUMENTS = UPDATE.arguments  # found out before a compiler traces a call
_check = checker(UpdateInPlace)
_gated_delta_rule = bind(OP)


def gated_delta_rule_update_(
    state: Float[Tensor, "B H V K"],
    q: Float[Tensor, "B G K"],
    k: Float[Tensor, "B G K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H"] | Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    *,
    scale: float | None = None,
    normalize_qk: bool = False,
) -> tuple[Float[Tensor, "B H V"], Float[Tensor, "B H V K"]]:
    """`gated_delta_rule_update`, which may overwrite `state`: go on from the state that it returns.

    On a GPU it is one kernel, which reads the state once and writes it once. Elsewhere, and where a gradient is
    recorded, it is `gated_delta_rule_update`.

    Args:
        state, q, k, v, g, beta, scale, normalize_qk: as in `gated_delta_rule_update`.

    Returns:
        o (B, H, V) in the dtype of v, and the new state.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> state, q, k = torch.zeros(2, 4, 32, 64), torch.randn(2, 2, 64), torch.randn(2, 2, 64)
        >>> v, g, beta = torch.randn(2, 4, 32), -torch.rand(2, 4), torch.rand(2, 4)
        >>> o, state = retrograd.gated_delta_rule_update_(state, q, k, v, g, beta, normalize_qk=True)
        >>> o.shape, state.shape
        (torch.Size([2, 4, 32]), torch.Size([2, 4, 32, 64]))
    """
    given = {"state": state, "q": q, "k": k, "v": v, "g": g, "beta": beta}
    arrays, options = _check(given, {"scale": scale, "normalize_qk": normalize_qk})
    tensors = [arrays[name] for name in _ARGUMENTS]
    found = by_kernels(UPDATE, tensors, tuple(options.values())) if stay({"state": state}, arrays) else None
    if found is not None:
        return found[0], state
    o, state = GATED_DELTA_RULE_UPDATE.run(torch_namespace(), _gated_delta_rule, arrays, options)
    return o, state
