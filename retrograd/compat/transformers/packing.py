"""Packed texts and padding reach the scans of Mamba's models.

transformers does not pass its mask to Mamba-2's fused layer in training, some models drop `seq_idx`, Mamba-1's scan
never gets it, and no scan looks at `position_ids`. A hook on a model's call computes `seq_idx`, with negative numbers
at padding, and passes it on; where layers get nothing but `attention_mask`, in its place.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from retrograd.compat.checks import expect
from retrograd.compat.reports import scan_of
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.torch.arguments import check_tensors

from .classes import replacing
from .exporting import keep_kernels_where_compiled
from .mixers import CLASSES, Mixer, Texts
from .positions import last_token_before, sequences

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
CACHES = ("past_key_values", "cache", "cache_params")  # the name differs between models and versions
HANDLES = "_retrograd_packing"


def keep_texts_apart(model: nn.Module) -> bool:
    """Let the scans of a model keep packed texts and padding apart; whether it has any.

    Mamba-2's are left as they are where their functions are not retrograd's.
    """
    mixers = [module for module in model.modules() if _is_mixer(module)]
    _warn_of_others(model)
    for mixer in mixers:
        if _named(mixer, CLASSES) and not isinstance(mixer, Mixer):
            mixer.__class__ = replacing(Mixer, type(mixer))
    for module, hook in _hooks(model, mixers):
        if HANDLES not in vars(module):  # a wrapper may answer for the module in it
            setattr(module, HANDLES, module.register_forward_pre_hook(hook, with_kwargs=True))
    if mixers:
        keep_kernels_where_compiled()
    return bool(mixers)


def as_before(model: nn.Module) -> None:
    """Undo `keep_texts_apart`."""
    for module in model.modules():
        if isinstance(module, Mixer):
            module.restore()
        if HANDLES in vars(module):
            vars(module).pop(HANDLES).remove()


def _named(module: nn.Module, names: Collection[str]) -> bool:
    """Whether a module's class, or one that it extends, has one of these names: FSDP and users extend them."""
    return any(kind.__name__ in names for kind in type(module).__mro__)


def _is_mixer(module: nn.Module) -> bool:
    """Whether a layer has a scan that can be reached; a forward of the module's own hides that of its class."""
    mamba1 = _named(module, CLASSES) and "forward" not in vars(module)
    return mamba1 or (_named(module, MAMBA2) and scan_of(module)[0])


def _warn_of_others(model: nn.Module) -> None:
    """Say which layers with a scan on retrograd run packed texts into one another, as before."""
    others = {
        type(module).__name__
        for module in model.modules()
        if hasattr(module, "A_log") and _of_transformers(module) and scan_of(module)[0] and not _is_mixer(module)
    }
    if others:
        message = f"patch does not keep packed texts apart in the scans of {', '.join(sorted(others))}"
        hidden = any("forward" in vars(module) for module in model.modules() if _named(module, CLASSES))
        replaced = "another library has replaced their forward; patch the model before"
        what = replaced if hidden else "pass one text in each row"
        warnings.warn(f"{message}: {what}", RuntimeWarning, stacklevel=4)


def _of_transformers(module: nn.Module) -> bool:
    return any(kind.__module__.startswith("transformers.models.") for kind in type(module).__mro__)


def _hooks(model: nn.Module, mixers: list[nn.Module]) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """The modules whose calls are changed, by the names of their classes, and how."""
    for module in model.modules():
        if not set(mixers).isdisjoint(module.modules()) and _of_transformers(module):
            if _named(module, [f"{name}ForCausalLM" for name in DROPPING]):
                yield module, _numbering(module, "attention_mask")
                continue
            if "layers" in module._modules and any(kind.__name__.endswith("Model") for kind in type(module).__mro__):
                masked = _named(module, [f"{name}Model" for name in MASKED])
                yield module, _numbering(module, "attention_mask" if masked else "seq_idx")
                continue
        if any(isinstance(child, Mixer) for child in module.children()):
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
    inputs = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
    if isinstance(mask, dict) or inputs is None:
        return args, kwargs
    name = type(module).__name__
    tokens = mask != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None
    if (cache := next((each for each in CACHES if given.get(each) is not None), None)) is not None:
        _check_cached(name, cache, given, *inputs.shape[:2])
        return args, kwargs
    if tokens is not None and tokens.shape != inputs.shape[:2]:
        raise bad_shape(name, "attention_mask", tokens.shape, f"(batch, seqlen) = {tuple(inputs.shape[:2])}")
    packed = _packed(name, given, tokens, *inputs.shape[:2])
    # Elsewhere transformers keeps padding out itself. With checkpoints of layers it leaves out the cache.
    fused = module.training and (not given.get("use_cache") or _checkpointed(module))
    padded = tokens if fused or packed is not None else None
    if padded is not None and not _has_padding(name, padded, packed):
        padded = None
    if packed is not None:
        if given.get("use_cache") and not fused:
            _refuse_several(packed, tokens, bad_value(name, "use_cache", True, "False for packed texts"))
        _warn_of_attention(module, given, mask)
    if packed is None and padded is None:
        return args, kwargs
    seq_idx = inputs.new_zeros(inputs.shape[:2], dtype=torch.int32) if packed is None else packed.int()
    seq_idx = seq_idx if padded is None else seq_idx.masked_fill(~padded, -1)
    if given.get("use_cache") is None:
        given["use_cache"] = False  # nothing goes on from packed texts, nor in training
    given |= {"attention_mask": Texts(seq_idx, mask)} if passes == "attention_mask" else {"seq_idx": seq_idx}
    return (), given


def _packed(name: str, given: dict[str, Any], tokens: Tensor | None, batch: int, steps: int) -> Tensor | None:
    """(batch, steps), the number of each step's text; None if there is one in each row."""
    if (seq_idx := given.get("seq_idx")) is not None:
        check_tensors(name, {"seq_idx": seq_idx}, required=1)
        expect(name, "seq_idx", seq_idx, (batch, steps), "(batch, seqlen)", "int32 or int64")
        return seq_idx
    if (bounds := given.get("cu_seq_lens_q")) is not None:
        check_tensors(name, {"cu_seq_lens_q": bounds}, required=1)
        expect(name, "cu_seq_lens_q", bounds, (bounds.numel(),), "(number of texts + 1,)", "int32 or int64")
        if bounds.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere the host would wait
            values, last = bounds.tolist(), batch * steps
            if values != sorted(values) or values[:1] != [0] or values[-1] != last:
                raise bad_value(name, "cu_seq_lens_q", values, f"[0, ..., {last}], not decreasing")
        step = torch.arange(batch * steps, device=bounds.device, dtype=bounds.dtype)
        return torch.bucketize(step, bounds[1:-1].contiguous(), right=True).view(batch, steps)
    positions = given.get("position_ids")
    if positions is None:
        return None
    check_tensors(name, {"position_ids": positions}, required=1)
    rows = batch if positions.shape[0] == batch else 1
    expect(name, "position_ids", positions, (rows, steps), "(batch, seqlen)", "int32 or int64")
    return sequences(positions, batch, steps, tokens)


def _check_cached(name: str, cache: str, given: dict[str, Any], batch: int, steps: int) -> None:
    """Raise for packed texts beside a cache, whose keys and states are those of one text in each row."""
    mask, tokens = given.get("attention_mask"), None
    if isinstance(mask, Tensor) and mask.ndim == 2:
        tokens = mask[:, -steps:] != 0  # a mask has the cached steps too
    if steps < 2 or (mask is not None and (tokens is None or tokens.shape != (batch, steps))):
        return  # a step of generation, or where padding is, whose positions say nothing, is not known
    packed = _packed(name, given, tokens, batch, steps)
    if packed is not None:
        _refuse_several(packed, tokens, bad_value(name, cache, type(given[cache]).__name__, "None for packed texts"))


def _refuse_several(packed: Tensor, tokens: Tensor | None, error: ValueError) -> None:
    """Raise the error if a row has tokens of several texts. The host reads it; where compiled, the program stops."""
    tokens = torch.ones_like(packed, dtype=torch.bool) if tokens is None else tokens
    first = torch.where(tokens, packed, packed.max()).amin(1)
    last = torch.where(tokens, packed, packed.min()).amax(1)
    if torch.compiler.is_compiling():
        torch._assert_async((first == last).all(), f"retrograd: {error}")
    elif bool((first < last).any()):
        raise error


def _has_padding(name: str, tokens: Tensor, packed: Tensor | None) -> bool:
    """Whether there are steps without a token; the host reads it. Raises for a text with a gap in it."""
    before = last_token_before(tokens)
    again = tokens[:, 1:] & ~tokens[:, :-1] & (before >= 0)  # a row goes on behind a gap
    if packed is not None:
        again &= packed[:, 1:] == packed.gather(1, before.clamp(min=0))
    padded, gaps = torch.stack([~tokens.all(), again.any()]).tolist()
    if gaps:
        raise bad_value(name, "attention_mask", "a mask with a gap within a text", "each text in one piece")
    return bool(padded)


def _checkpointed(module: nn.Module) -> bool:
    return any(getattr(each, "gradient_checkpointing", False) for each in module.modules())


def _warn_of_attention(module: nn.Module, given: dict[str, Any], mask: Any) -> None:
    """Say that attention of a hybrid runs packed texts into one another, where transformers' own does."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if torch.compiler.is_compiling() or chosen == "retrograd" or not _attends(module):
        return
    by_positions = given.get("position_ids") is not None and mask is None
    if "flash" in str(chosen) or (by_positions and not _named(module, ["GraniteMoeHybridModel"])):
        return
    message = (
        f"{type(module).__name__}: packed texts see one another in its layers of attention ({chosen!r}), expected "
        "attn_implementation=retrograd.compat.transformers.register()"
    )
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _attends(module: nn.Module) -> bool:
    return any("Attention" in type(child).__name__ for child in module.modules())
