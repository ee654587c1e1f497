"""Packed texts and padding reach the scans of Mamba's models.

transformers does not pass its mask to Mamba-2's fused layer in training, some models drop `seq_idx`, Mamba-1's scan
never gets it, and no scan looks at `position_ids`. A hook on a model's call computes `seq_idx`, with negative numbers
at padding, and passes it on; where layers get nothing but `attention_mask`, in its place.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from retrograd.compat.checks import expect
from retrograd.compat.reports import scan_of
from retrograd.core.errors import bad_value

from .classes import replacing
from .exporting import keep_kernels_where_compiled
from .mixers import CLASSES, Mixer, Texts
from .positions import sequences

MAMBA2 = (
    "Mamba2Mixer",
    "BambaMixer",
    "Zamba2MambaMixer",
    "FalconH1Mixer",
    "NemotronHMamba2Mixer",
    "GraniteMoeHybridMambaLayer",
)
MASKED = ("Mamba", "FalconMamba")  # models whose layers get nothing but attention_mask
DROPPING = (*MASKED, "Mamba2")  # models for language that pass nothing else to their layers
HANDLES = "_retrograd_packing"


def keep_texts_apart(model: nn.Module) -> bool:
    """Let the scans of a model keep packed texts and padding apart; whether it has any.

    Mamba-2's are left as they are where their functions are not retrograd's.
    """
    mixers = [module for module in model.modules() if _is_mixer(module)]
    _warn_of_others(model)
    for mixer in mixers:
        if type(mixer).__name__ in CLASSES and not isinstance(mixer, Mixer):
            mixer.__class__ = replacing(Mixer, type(mixer))
    for module, hook in _hooks(model, mixers):
        if not hasattr(module, HANDLES):
            setattr(module, HANDLES, module.register_forward_pre_hook(hook, with_kwargs=True))
    if mixers:
        keep_kernels_where_compiled()
    return bool(mixers)


def as_before(model: nn.Module) -> None:
    """Undo `keep_texts_apart`."""
    for module in model.modules():
        if isinstance(module, Mixer):
            module.__class__ = module.original  # type: ignore[assignment]
        if hasattr(module, HANDLES):
            getattr(module, HANDLES).remove()
            delattr(module, HANDLES)


def _is_mixer(module: nn.Module) -> bool:
    """Whether a layer has a scan that can be reached."""
    name = type(module).__name__
    return name in CLASSES or (name in MAMBA2 and scan_of(module)[0])


def _warn_of_others(model: nn.Module) -> None:
    """Say which layers with a scan on retrograd run packed texts into one another, as before."""
    scans = {type(module) for module in model.modules() if hasattr(module, "A_log") and scan_of(module)[0]}
    names = {kind.__name__ for kind in scans if kind.__module__.startswith("transformers.")}
    if others := names.difference(CLASSES, MAMBA2):
        message = f"patch does not keep packed texts apart in the scans of {', '.join(sorted(others))}"
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _hooks(model: nn.Module, mixers: list[nn.Module]) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """The modules whose calls are changed, by the names of their classes, and how."""
    for module in model.modules():
        name, owns = type(module).__name__, not set(mixers).isdisjoint(module.modules())
        if owns and name.endswith("ForCausalLM") and name.removesuffix("ForCausalLM") in DROPPING:
            yield module, _numbering(module, "attention_mask")
        elif owns and name.endswith("Model") and hasattr(module, "layers"):
            masked = name.removesuffix("Model") in MASKED
            yield module, _numbering(module, "attention_mask" if masked else "seq_idx")
        elif any(isinstance(child, Mixer) for child in module.children()):
            yield module, _handed_on


def _handed_on(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a layer that passes no seq_idx to its mixer."""
    if kwargs.get("seq_idx") is not None:
        kwargs = kwargs | {"attention_mask": Texts(kwargs["seq_idx"], kwargs.get("attention_mask"))}
    return args, kwargs


def _numbering(module: nn.Module, passes: str) -> Callable[..., Any]:
    """The hook of a model, which passes the numbers on by this name."""
    positional = tuple(inspect.signature(type(module).forward).parameters)[1:]
    return functools.partial(_numbered, positional=positional, passes=passes)


def _numbered(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, positional: tuple[str, ...], passes: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a model's call, with its texts numbered where there are several, or padding."""
    given = dict(zip(positional, args, strict=False)) | kwargs
    mask = given.get("attention_mask")
    if isinstance(mask, Texts):
        if passes == "seq_idx":
            given |= {"seq_idx": mask.seq_idx, "attention_mask": mask.attention_mask}
        return (), given
    if isinstance(mask, dict) or any(given.get(name) is not None for name in ("cache", "cache_params")):
        return args, kwargs
    inputs = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
    if inputs is None or given.get("past_key_values") is not None:
        return args, kwargs
    packed = _packed(type(module).__name__, given, *inputs.shape[:2])
    fused = module.training and not given.get("use_cache")  # elsewhere transformers keeps padding out itself
    padded = mask if isinstance(mask, Tensor) and mask.ndim == 2 and (fused or packed is not None) else None
    if padded is not None and not _has_padding(type(module).__name__, padded, gaps=packed is not None):
        padded = None
    if packed is None and padded is None:
        return args, kwargs
    seq_idx = inputs.new_zeros(inputs.shape[:2], dtype=torch.int32) if packed is None else packed.int()
    seq_idx = seq_idx if padded is None else seq_idx.masked_fill(padded == 0, -1)
    if given.get("use_cache") is None:
        given["use_cache"] = False  # nothing goes on from packed texts, nor in training
    given |= {"attention_mask": Texts(seq_idx, mask)} if passes == "attention_mask" else {"seq_idx": seq_idx}
    return (), given


def _packed(name: str, given: dict[str, Any], batch: int, steps: int) -> Tensor | None:
    """(batch, steps), the number of each step's text; None if there is one in each row."""
    if (seq_idx := given.get("seq_idx")) is not None:
        expect(name, "seq_idx", seq_idx, (batch, steps), "(batch, seqlen)", "int32 or int64")
        return seq_idx
    if (bounds := given.get("cu_seq_lens_q")) is not None:
        step = torch.arange(batch * steps, device=bounds.device, dtype=bounds.dtype)
        return torch.bucketize(step, bounds[1:-1].contiguous(), right=True).view(batch, steps)
    positions = given.get("position_ids")
    return None if positions is None else sequences(positions, batch, steps)


def _has_padding(name: str, mask: Tensor, *, gaps: bool) -> bool:
    """Whether a mask is 0 somewhere; the host reads it. Raises for texts with gaps unless these are numbered."""
    tokens = mask != 0
    begins = (tokens[:, 1:] & ~tokens[:, :-1]).sum(1) + tokens[:, 0]
    padded, several = torch.stack([~tokens.all(), (begins > 1).any()]).tolist()
    if several and not gaps:
        expected = "one run of tokens in each row, or seq_idx beside it"
        raise bad_value(name, "attention_mask", "a mask with gaps", expected)
    return bool(padded)
