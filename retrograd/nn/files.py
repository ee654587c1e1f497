"""A model in a folder: config.json and its weights, as state-spaces/mamba lays them out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import MambaConfig
from .model import LanguageModel

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
HEAD, EMBEDDING = "lm_head.weight", "backbone.embedding.weight"


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
        dtype: to cast them to; A_log and D stay as they are in the file.

    Raises:
        FileNotFoundError: where one is not there.
        ValueError: for a config that is not of a Mamba-1 model, and for weights of other names or shapes.
    """
    folder = Path(folder)
    config = MambaConfig.from_dict(json.loads((folder / CONFIG).read_text()))
    if (folder / WEIGHTS).exists():
        weights = load_file(folder / WEIGHTS)
    elif (folder / PICKLED).exists():
        weights = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    else:
        raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {PICKLED}")
    model = LanguageModel(config, device="meta")
    check(weights, model, folder)
    model.load_state_dict(weights, assign=True)
    if config.tie_embeddings:
        model.lm_head.weight = model.backbone.embedding.weight
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(device, None if name.endswith((".A_log", ".D")) else dtype)
    return model


def check(weights: dict[str, Tensor], model: LanguageModel, source: Path) -> None:
    """Raise ValueError for names or shapes that are not the model's."""
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if model.config.tie_embeddings:
        weights.setdefault(HEAD, weights.get(EMBEDDING, torch.empty(0)))
    for name in expected.keys() - weights.keys():
        raise ValueError(f"{source}: {name} is missing")
    for name, value in weights.items():
        if name not in expected:
            raise ValueError(f"{source}: {name} is not a parameter of this model")
        if tuple(value.shape) != expected[name]:
            raise ValueError(f"{source}: {name} has shape {tuple(value.shape)}, expected {expected[name]}")


def save(model: LanguageModel, folder: str | Path) -> None:
    """Write config.json and model.safetensors, each beside its place first, so that a reader finds it whole."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_embeddings:
        del weights[HEAD]  # one array, under one name
    beside = folder / f"{WEIGHTS}.new"
    save_file(weights, beside)
    os.replace(beside, folder / WEIGHTS)
    beside = folder / f"{CONFIG}.new"
    beside.write_text(json.dumps(model.config.to_dict(), indent=2) + "\n")
    os.replace(beside, folder / CONFIG)
