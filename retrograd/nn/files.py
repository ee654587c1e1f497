"""A model in a folder: config.json and its weights. state-spaces/mamba's are read; ours are safetensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from retrograd.core.errors import bad_type, bad_value

from .config import MambaConfig
from .model import LanguageModel

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
HEAD, EMBEDDING = "lm_head.weight", "backbone.embedding.weight"
COMPILED = "_orig_mod."  # what torch.compile puts before the names of a module it wraps


def load(
    folder: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """The model in a folder on disk, such as a copy of `state-spaces/mamba-130m`.

    Args:
        folder: it holds config.json, and model.safetensors or pytorch_model.bin.
        device: where the parameters go.
        dtype: to cast them to, A_log and D to float32 at least; by default all stay as they are in the file.

    Raises:
        FileNotFoundError: where one is not there.
        TypeError, ValueError: for a dtype that is not of floats, a config that is not of a Mamba-1 model, and weights
            of other names, shapes or kinds.

    Example:
        >>> import tempfile
        >>> from retrograd.nn import LanguageModel, MambaConfig, load, save
        >>> folder = tempfile.mkdtemp()
        >>> save(LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256)), folder)
        >>> load(folder).config.n_layer
        2
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise bad_value("load", "dtype", dtype, "a torch.dtype of floats")
    folder = Path(folder)
    config = MambaConfig.from_dict(json.loads((folder / CONFIG).read_text()))
    if (folder / WEIGHTS).exists():
        weights = load_file(folder / WEIGHTS)
    elif (folder / PICKLED).exists():
        weights = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    else:
        raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {PICKLED}")
    model = built(weights, config, str(folder))
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(device, _dtype_of(name, dtype))
    return model


def _dtype_of(name: str, dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is None or not name.endswith((".A_log", ".D")):
        return dtype
    return torch.promote_types(dtype, torch.float32)


def built(weights: Any, config: MambaConfig, source: str) -> LanguageModel:
    """A model that has these tensors for parameters, no copies.

    Raises:
        ValueError: see `checked`.
    """
    model = LanguageModel(config, device="meta")
    model.load_state_dict(checked(weights, model, source), assign=True)
    if config.tie_embeddings:
        model.lm_head.weight = model.backbone.embedding.weight
    return model


def checked(weights: Any, model: LanguageModel, source: str) -> dict[str, Tensor]:
    """The weights under all names of the model, a tied head's among them.

    Raises:
        ValueError: for names, shapes or kinds that are not the model's, and a head that should be the embedding and
            is not.
    """
    if not isinstance(weights, dict):
        raise ValueError(f"{source}: there is a {type(weights).__name__}, expected a dict from names to tensors")
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tied = model.config.tie_embeddings
    if tied and EMBEDDING in weights:
        weights = {HEAD: weights[EMBEDDING]} | weights
    for name in sorted(expected.keys() - weights.keys()):
        raise ValueError(f"{source}: {name} is missing")
    for name, value in weights.items():
        if name not in expected:
            raise ValueError(f"{source}: {name} is not a parameter of this model")
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{source}: {name} is {kind}, expected a tensor of floats")
        if tuple(value.shape) != expected[name]:
            raise ValueError(f"{source}: {name} has shape {tuple(value.shape)}, expected {expected[name]}")
    if tied and not _same(weights[HEAD], weights[EMBEDDING]):
        raise ValueError(f"{source}: {HEAD} is not {EMBEDDING}, but the config has tie_embeddings")
    return weights


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or (a.dtype == b.dtype and torch.equal(a, b))


def stored(model: LanguageModel, source: str) -> dict[str, Tensor]:
    """The weights by the names in files: none of `torch.compile`'s, and a tied head under the embedding's alone.

    Raises:
        TypeError: for another module.
        ValueError: for a model whose parameters are no longer those of its config.
    """
    if not isinstance(getattr(model, "config", None), MambaConfig):
        raise bad_type(source, "model", model, "a LanguageModel")
    weights = {name.replace(COMPILED, ""): value.detach() for name, value in model.state_dict().items()}
    weights = checked(weights, LanguageModel(model.config, device="meta"), source)
    return {name: value for name, value in weights.items() if name != HEAD or not model.config.tie_embeddings}


def save(model: LanguageModel, folder: str | Path) -> None:
    """Write config.json and model.safetensors, each beside its place first, so that a reader finds it whole.

    Args:
        model: the model, whole or in parts wrapped by `torch.compile`.
        folder: made if it is not there.

    Raises:
        TypeError: for another module.
        ValueError: for a model whose parameters are no longer those of its config.
    """
    weights = {name: value.contiguous() for name, value in stored(model, "save").items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f"{WEIGHTS}.new"
    save_file(weights, beside)
    os.replace(beside, folder / WEIGHTS)
    beside = folder / f"{CONFIG}.new"
    beside.write_text(json.dumps(model.config.to_dict(), indent=2) + "\n")
    os.replace(beside, folder / CONFIG)
