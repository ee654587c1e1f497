"""`gated_delta_rule_step_` and `gated_delta_rule_update_`: steps that overwrite what they go on from, for PyTorch."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from retrograd.core.errors import fields_of
from retrograd.core.op import Implementation, Op, names
from retrograd.core.program import ALIGNMENT
from retrograd.core.torch.arguments import stay
from retrograd.core.torch.checks import checker
from retrograd.core.torch.op import bind, by_kernels
from retrograd.core.torch.xp import torch_namespace

from .generation import GATED_DELTA_RULE_STEP, GATED_DELTA_RULE_UPDATE
from .op import OP
from .steps import GatedDeltaRuleWindow, InPlace, Overwriting, UpdateInPlace

_WINDOW = " ".join(f"window_{name}" for name in GatedDeltaRuleWindow._fields)
IN_PLACE = Op(
    Overwriting,
    __package__,
    (Implementation(f"{__package__}.window", takes=names(f"q k v g beta scale normalize_qk {_WINDOW}")),),
)
UPDATE = Op(
    UpdateInPlace,
    __package__,
    (Implementation(f"{__package__}.triton.update", takes=names("state q k v g beta scale normalize_qk")),),
)
_ARGUMENTS = UPDATE.arguments  # found out before a compiler traces a call
_check = checker(InPlace)
_check_update = checker(UpdateInPlace)
_gated_delta_rule = bind(OP)


def gated_delta_rule_step_(
    window: GatedDeltaRuleWindow,
    q: Float[Tensor, "B G K"],
    k: Float[Tensor, "B G K"],
    v: Float[Tensor, "B H V"],
    g: Float[Tensor, "B H"] | Float[Tensor, "B H K"],
    beta: Float[Tensor, "B H"],
    *,
    scale: float | None = None,
    normalize_qk: bool = False,
) -> tuple[Float[Tensor, "B H V"], GatedDeltaRuleWindow]:
    """`gated_delta_rule_step`, which may overwrite the arrays of `window`: go on from the window that it returns.

    Where `gated_delta_rule` runs on kernels, these run on the window, between a kernel that writes the step into it and
    one that takes the result out. Elsewhere, and where a gradient is recorded, it is `gated_delta_rule_step`.

    Args:
        window, q, k, v, g, beta, scale, normalize_qk: as in `gated_delta_rule_step`.

    Returns:
        o (B, H, V) in the dtype of v, and the new window.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import torch, retrograd
        >>> q, k, v = torch.randn(1, 5, 2, 64) / 8, torch.randn(1, 5, 2, 64) / 8, torch.randn(1, 5, 4, 32)
        >>> arrays = q, k, v, -torch.rand(1, 5, 4), torch.rand(1, 5, 4)
        >>> o, window = retrograd.gated_delta_rule_prefill(*(x[:, :4] for x in arrays))
        >>> last, window = retrograd.gated_delta_rule_step_(window, *(x[:, 4] for x in arrays))
        >>> bool((last == retrograd.gated_delta_rule(*arrays)[:, 4]).all())
        True
    """
    given = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    parts = fields_of("gated_delta_rule_step_", "window", window, GatedDeltaRuleWindow)
    arrays, options = _check(parts | given, {"scale": scale, "normalize_qk": normalize_qk})
    tensors = [*(arrays[name] for name in given), *(arrays[name] for name in parts)]  # as Overwriting declares them
    found = by_kernels(IN_PLACE, tensors, tuple(options.values())) if _stay(parts, arrays) else None
    if found is not None:
        o, steps = found
        return o, window._replace(steps=steps)
    o, window = GATED_DELTA_RULE_STEP.run(torch_namespace(), _gated_delta_rule, arrays, options)
    return o, window


def _stay(parts: dict[str, Tensor], arrays: dict[str, Tensor]) -> bool:
    """As `stay`, and the arrays begin where the kernels for a sequence do not copy them first."""
    return stay(parts, arrays) and all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in parts.values())


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
    arrays, options = _check_update(given, {"scale": scale, "normalize_qk": normalize_qk})
    tensors = [arrays[name] for name in _ARGUMENTS]
    found = by_kernels(UPDATE, tensors, tuple(options.values())) if stay({"state": state}, arrays) else None
    if found is not None:
        return found[0], state
    o, state = GATED_DELTA_RULE_UPDATE.run(torch_namespace(), _gated_delta_rule, arrays, options)
    return o, state
