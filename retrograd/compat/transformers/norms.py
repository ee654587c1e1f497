"""Replaces the RMS norms in a loaded model of transformers by retrograd's rms_norm."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import retrograd
from retrograd.compat.dtypes import beside
from retrograd.core.errors import bad_type

Model = TypeVar("Model", bound=nn.Module)

EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Norm:
    """The norm that a module computes, in retrograd's terms.

    Attributes:
        original: its class.
        eps: added to the mean square.
        weight_offset: added to the weight.
        out_dtypes: dtypes of input and weight -> that of the result.
    """

    original: type[nn.Module]
    eps: float
    weight_offset: float
    out_dtypes: Mapping[tuple[torch.dtype, torch.dtype], torch.dtype] = field(hash=False)

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """The norm of x."""
        out_dtype = self.out_dtypes.get((x.dtype, weight.dtype), x.dtype)  # with float64, all dtypes are float64
        return retrograd.rms_norm(
            x, beside(x, weight), eps=self.eps, weight_offset=self.weight_offset, out_dtype=out_dtype
        )


class RMSNorm(nn.Module):
    """A patched norm: the same module with the same parameters and hooks, but this class."""

    weight: nn.Parameter
    norm: Norm

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The norm of the last dimension."""
        return self.norm(hidden_states, self.weight)

    def extra_repr(self) -> str:
        """Shape, eps, offset, and the original class."""
        norm = self.norm
        return f"{tuple(self.weight.shape)}, eps={norm.eps}, offset={norm.weight_offset}, was {norm.original.__name__}"


def patch(model: Model) -> Model:
    """Let the RMS norms of a model run on `retrograd.rms_norm`: Llama's, Gemma's, Qwen's, Mamba's and those like them.

    A module is recognised by what it computes: RMSNorm is in its class's name, it has a weight and an eps, takes one
    tensor, and on random numbers it computes x / sqrt(mean(x^2) + eps) times its weight, or times 1 + its weight as
    Gemma does. A module with such a name that computes something else, such as a gated norm, is left as it is, and a
    warning says which and why. The results' dtypes are those of the original; the numbers differ by rounding,
    since retrograd rounds once, at the end.

    Modules are changed in place, by replacing their class: parameters, hooks and the keys of `state_dict` stay the
    same. The eps is that of the module when it is patched.

    Args:
        model: any module; one that is patched already stays as it is.

    Returns:
        The model.

    Raises:
        TypeError: if the model is no module.
        ValueError: if no norm was found that could be replaced.

    Example:
        >>> import torch, transformers
        >>> from retrograd.compat.transformers import patch
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> model = patch(transformers.LlamaForCausalLM(config))
        >>> model.model.norm
        RMSNorm((16,), eps=1e-06, offset=0.0, was LlamaRMSNorm)
    """
    if not isinstance(model, nn.Module):
        raise bad_type("patch", "model", model, "a torch.nn.Module")
    found: dict[nn.Module, Norm] = {}
    left: dict[tuple[str, str], list[str]] = {}  # class and reason -> names of modules
    patched = 0
    for name, module in model.named_modules():
        if isinstance(module, RMSNorm):
            patched += 1
        elif "RMSNorm" in type(module).__name__:
            norm = recognise(module)
            if isinstance(norm, Norm):
                found[module] = norm
            else:
                left.setdefault((type(module).__name__, norm), []).append(name)
    for module, norm in found.items():
        module.norm = norm  # type: ignore[assignment]
        module.__class__ = RMSNorm
    reasons = "; ".join(
        f"{kind} ({', '.join(names[:2])}; {len(names)} in all): {why}" for (kind, why), names in left.items()
    )
    if not found and not patched:
        raise ValueError(f"patch: model has no RMSNorm that could be replaced. {reasons}".rstrip())
    if left:
        warnings.warn(f"patch left as they are: {reasons}", RuntimeWarning, stacklevel=2)
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch`, in place."""
    for module in model.modules():
        if isinstance(module, RMSNorm):
            original = module.norm.original
            del module.norm
            module.__class__ = original  # type: ignore[assignment]
    return model


def recognise(module: nn.Module) -> Norm | str:
    """The norm that a module computes, or the reason why it is not replaced."""
    weight = getattr(module, "weight", None)
    eps = next((getattr(module, name) for name in EPS_NAMES if hasattr(module, name)), None)
    if "forward" in vars(module):
        return "its forward is replaced already"
    if not isinstance(weight, nn.Parameter) or weight.ndim != 1 or len(list(module.parameters())) != 1:
        return "it has not just one parameter, a weight of one dimension"
    if next(module.children(), None) is not None:
        return "it has modules of its own"
    if not isinstance(eps, float):
        return f"it has no number named {' or '.join(EPS_NAMES)}"
    if len(inspect.signature(type(module).forward).parameters) != 2:
        return "it takes more than one tensor"
    return _probe(module, weight.shape[0], eps)


@torch.no_grad()
def _probe(module: nn.Module, width: int, eps: float) -> Norm | str:
    # The device and the dtype are explicit, so that the defaults do not matter.
    fp32: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(width, generator=generator, **fp32) + 0.5
    # In the smallest rows eps outweighs the squares, so that a wrong one shows.
    sizes = torch.tensor([[0.1 * eps**0.5], [eps**0.5], [1.0], [30.0]], **fp32)
    x = torch.randn(4, width, generator=generator, **fp32) * sizes

    def original(x: Tensor, weight: Tensor) -> Tensor:
        probe = copy.copy(module)
        probe.__dict__["_parameters"] = {"weight": nn.Parameter(weight)}
        result = type(module).forward(probe, x)
        return result if isinstance(result, Tensor) else torch.empty(0)

    try:
        with torch.autocast("cpu", enabled=False):
            out_dtypes = {(a, b): original(x.to(a), weight.to(b)).dtype for a in DTYPES for b in DTYPES}
            expected = original(x, weight)
            for offset in (0.0, 1.0):
                norm = Norm(type(module), eps, offset, out_dtypes)
                # Two orders of the same sum in float32 are apart by some 1e-6; another formula, by far more.
                if expected.shape == x.shape and torch.allclose(norm(x, weight), expected, rtol=1e-5, atol=0):
                    return norm
    except Exception as error:
        return f"it could not be tried out ({type(error).__name__}: {error})"
    return "it computes something else"
