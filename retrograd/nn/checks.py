"""Checks of the modules' inputs, before anything runs."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from jaxtyping import Int32
from torch import Tensor

from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, check_nondecreasing
from retrograd.core.torch.autocast import autocasts
from retrograd.core.torch.context import Context
from retrograd.core.torch.formulas import readable
from retrograd.models.config import MambaConfig
from retrograd.models.generation import check_size
from retrograd.models.layers import MixerConfig

INTEGERS = (torch.int64, torch.int32)


def check_features(module: str, u: Tensor, axes: tuple[str, ...], channels: int, dtype: torch.dtype) -> None:
    """Raise unless u is a tensor (*axes, d_model) in the weights' dtype; autocast allows any."""
    if not isinstance(u, Tensor):
        raise bad_type(module, "u", u, "a torch.Tensor")
    if u.ndim != len(axes) + 1 or u.shape[-1] != channels:
        raise bad_shape(module, "u", tuple(u.shape), f"({', '.join(axes)}, d_model={channels})")
    # A quantised projection may have integer weights.
    if u.dtype != dtype and dtype.is_floating_point and not autocasts(u.device.type):
        raise bad_dtype(module, "u", str(u.dtype), [f"{dtype}, that of the weights"])


def check_layer(module: str, d_model: Any, config: Any, kind: type[MixerConfig]) -> None:
    """Raise unless a layer's config is of its kind and goes with d_model."""
    check_size(module, "d_model", d_model)
    if not isinstance(config, kind):
        raise bad_type(module, "config", config, _one(kind))
    config.check(d_model)


def check_layer_state(
    module: str, state: Any, kind: type[Any], absent: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> None:
    """Raise unless a layer's state is a named tuple of its kind, of tensors, of None where `absent` says so, and of
    anything where `others` does.
    """
    if not isinstance(state, kind):
        raise bad_type(module, "state", state, _one(kind))
    for name, tensor in zip(kind._fields, state, strict=True):
        if name in absent and tensor is not None:
            raise bad_type(module, f"state.{name}", tensor, "None")
        if name not in (*absent, *others) and not isinstance(tensor, Tensor):
            raise bad_type(module, f"state.{name}", tensor, "a torch.Tensor")


def _one(kind: type[Any]) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def boundaries(module: str, cu_seqlens: Any, u: Tensor, argument: str = "u") -> Int32[Tensor, " S+1"]:
    """Boundaries of sequences in u, (1, T) or (1, T, d_model), in int32; raises for other ones. Their values are looked
    at on a CPU only.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise bad_type(module, "cu_seqlens", cu_seqlens, "a torch.Tensor")
    if cu_seqlens.dtype not in INTEGERS:
        raise bad_dtype(module, "cu_seqlens", str(cu_seqlens.dtype), [str(dtype) for dtype in INTEGERS])
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise bad_shape(module, "cu_seqlens", cu_seqlens.shape, "(S + 1,), S at least 1")
    if u.shape[0] != 1:
        features = ", d_model" * (u.ndim == 3)
        raise bad_shape(module, argument, u.shape, f"(1, time{features}), since cu_seqlens is given")
    if is_readable(cu_seqlens):
        check_nondecreasing(module, "cu_seqlens", cu_seqlens.tolist(), u.shape[1])
    return cu_seqlens.to(torch.int32)


def check_context(module: str, context: Any, state: Any, cu_seqlens: Any) -> None:
    """Raise for what a module does not take beside a context."""
    if context is None:
        return
    if not isinstance(context, Context):
        raise bad_type(module, "context", context, "a retrograd.distributed.ContextParallel")
    if state is not None:
        raise bad_value(module, "state", "given", "None beside a context")
    if cu_seqlens is not None:
        raise bad_value(module, "cu_seqlens", "an array", "None: the context's layout has the boundaries")


def is_readable(numbers: Tensor) -> bool:
    """Whether values of an ordinary tensor can be looked at without waiting for a GPU, and are not being traced."""
    return type(numbers) is Tensor and readable(numbers)


def check_tokens(module: str, tokens: Tensor, axes: tuple[str, ...], argument: str = "tokens") -> None:
    """Raise unless tokens are an integer tensor with these axes."""
    if not isinstance(tokens, Tensor):
        raise bad_type(module, argument, tokens, "a torch.Tensor")
    if tokens.dtype not in INTEGERS:
        raise bad_dtype(module, argument, str(tokens.dtype), [str(dtype) for dtype in INTEGERS])
    if tokens.ndim != len(axes):
        raise bad_shape(module, argument, tuple(tokens.shape), f"({', '.join(axes)})")


def check_vocabulary(
    module: str, tokens: Tensor, config: MambaConfig, argument: str = "tokens", *, padded: bool = True
) -> None:
    """Raise for a token outside of the vocabulary, padded or not. It reads values, which on a GPU would synchronise."""
    rows = config.padded_vocab_size if padded else config.vocab_size
    outside = tokens[(tokens < 0) | (tokens >= rows)]
    if outside.numel():
        more = f", padded to {rows}" if rows != config.vocab_size else ""
        expected = f"numbers from 0 to {rows - 1} (vocab_size={config.vocab_size}{more})"
        raise bad_value(module, argument, int(outside[0]), expected)


def check_state(module: str, state: Any, layers: int) -> None:
    """Raise unless there is a state for each layer."""
    if not isinstance(state, Sized) or len(state) != layers:
        raise bad_type(module, "state", state, f"a sequence of {layers} states, one for each layer")


def check_model(where: str, model: Any) -> None:
    """Raise unless the model is a language model, possibly wrapped by `torch.compile`."""
    if not isinstance(getattr(model, "config", None), MambaConfig) or not hasattr(model, "lm_head"):
        raise bad_type(where, "model", model, "a LanguageModel")
