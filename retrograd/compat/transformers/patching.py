"""Changes of a loaded model: its norms, and what its scans are told of packed texts and padding."""

from __future__ import annotations

import warnings
from typing import TypeVar

from torch import nn

from retrograd.core.errors import bad_type

from .classes import Replacement
from .norms import RMSNorm, replace_norms, restore_norms
from .packing import as_before, keep_texts_apart

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model) -> Model:
    """Let a loaded model run its RMS norms on `retrograd.rms_norm`, and its scans keep packed texts and padding apart.

    **Norms.** A module is recognised by what it computes: RMSNorm is in its class's name, or it is named like T5's
    LayerNorm; it has an eps and at most a weight; and on random numbers it computes x / sqrt(mean(x^2) + eps) times its
    weight, or times 1 + its weight as Gemma does, in groups or not, with a gate of its input or of its output or
    without one. A module named RMSNorm that computes something else is left as it is, and a warning says which and why.
    The results' dtypes are those of the original; the numbers differ by rounding, since retrograd rounds once, at the
    end. The eps is that of the module when it is patched; None, as in `torch.nn.RMSNorm`, is that of float32, or of
    float64 for such an input.

    **Scans.** In the models of Mamba's and Mamba-2's family, packed texts (`seq_idx`, `cu_seq_lens_q`, or
    `position_ids` that restart) do not see one another in any scan or convolution, and padding on either side changes
    no text in training. transformers runs them into one another in Mamba-1's scan, in Mamba2ForCausalLM, wherever
    `seq_idx` is not given, and with padding on the left. Attention in hybrids keeps texts apart by `register()`; a
    warning says where transformers' own does not. Mamba-2's layers need `retrograd.compat.install()` before the model
    is imported; `retrograd.compat.report` says whether that was so. A mask with a gap within a text is refused, and so
    are packed texts beside a cache or `use_cache=True`: a cache goes on from one text in each row. The model is to be
    called as `model(...)`: hooks do this, which `model.forward(...)` passes by.

    With torch 2.10 and 2.11 it also lets these models keep their kernels under `torch.compile`, in the whole process.

    Modules are changed in place, by replacing their class and by hooks: parameters, hooks and the keys of `state_dict`
    stay the same.

    Args:
        model: any module; what is patched already stays as it is.

    Returns:
        The model.

    Raises:
        TypeError: if the model is no module.
        ValueError: if nothing was found that could be replaced.

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
    reasons = replace_norms(model)
    scans = keep_texts_apart(model)
    if not scans and not any(isinstance(module, RMSNorm) for module in model.modules()):
        raise ValueError(f"patch: model has no RMSNorm that could be replaced. {reasons}".rstrip())
    if reasons:
        warnings.warn(f"patch left as they are: {reasons}", RuntimeWarning, stacklevel=2)
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch`, in place.

    Args:
        model: any module; what is not patched stays as it is.

    Returns:
        The model.

    Raises:
        TypeError: if the model is no module.
        ValueError: if something was built on a patched module since, a parametrization or accelerate's hooks, which
            would be lost. The model is then as it was.
    """
    if not isinstance(model, nn.Module):
        raise bad_type("unpatch", "model", model, "a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, Replacement):
            module.check_unchanged("unpatch", name or "model")
    restore_norms(model)
    as_before(model)
    return model
