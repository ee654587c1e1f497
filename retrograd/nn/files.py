"""Load and save a model: config.json and safetensors in a folder. state-spaces/mamba's checkpoints can be read too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from retrograd.core.errors import bad_value
from retrograd.models.config import MambaConfig
from retrograd.models.shapes import EMBEDDING, HEAD, WIDE, model_shapes

from . import checksums
from .checks import check_model
from .model import LanguageModel, is_same

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
COMPILED = "_orig_mod."  # the prefix that torch.compile adds to the names of a module it wraps


def load(
    folder: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    exact: bool | None = None,
) -> LanguageModel:
    """The model in a folder on disk. Of a model on the Hub `huggingface_hub` makes such a folder:
    `load(huggingface_hub.snapshot_download("state-spaces/mamba2-130m"))`.

    Args:
        folder: with config.json, and model.safetensors or pytorch_model.bin. If it has a SHA256SUMS that lists them,
            as the checkpoints of `retrograd.train` have, they are checked against it.
        device: of the parameters; "meta" for their shapes alone.
        dtype: to cast them to, A_log, D and dt_bias to at least float32; by default those in the file.
        exact: as of `LanguageModel`; a file does not say it.

    Raises:
        FileNotFoundError: for a folder that is not there, as a name on the Hub, and for a missing file.
        TypeError, ValueError: for a dtype that is not floating, a config of other layers, weights with other names,
            shapes or types, and a file that differs from SHA256SUMS.

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
    while True:
        place = (folder / CONFIG).resolve()
        try:
            config, weights = read_config(folder / CONFIG), read_weights(folder)
            break
        except FileNotFoundError:
            if (folder / CONFIG).resolve() == place:
                if folder.is_dir():
                    raise
                expected = "a folder on disk, not a name on the Hub"
                raise FileNotFoundError(f"load: folder is {str(folder)!r}, expected {expected}") from None
            # A training run has just replaced the checkpoint that was being read.
    weights = checked(weights, config, str(folder))
    return built({name: value.to(device, _dtype_of(name, dtype)) for name, value in weights.items()}, config, exact)


def read_config(path: Path) -> MambaConfig:
    """The config in a config.json.

    Raises:
        TypeError, ValueError: see `MambaConfig.from_dict`; the file is not JSON, or differs from SHA256SUMS.
        OSError: the file is missing.
    """
    checksums.check(path)
    try:
        contents = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return MambaConfig.from_dict(contents)


def read_weights(folder: Path) -> Any:
    """The weights in a folder, on the CPU.

    Raises:
        ValueError: the file is damaged, or differs from SHA256SUMS.
        FileNotFoundError: there is no file of weights.
    """
    if (path := folder / WEIGHTS).exists():
        checksums.check(path)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    if (path := folder / PICKLED).exists():
        checksums.check(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {PICKLED}")


def _dtype_of(name: str, dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is None or name.rpartition(".")[2] not in WIDE:
        return dtype
    return torch.promote_types(dtype, torch.float32)


def built(weights: Mapping[str, Tensor], config: MambaConfig, exact: bool | None = None) -> LanguageModel:
    """A model whose parameters are these tensors (see `checked`), without copies."""
    model = LanguageModel(config, device="meta", exact=exact)
    model.load_state_dict(weights, assign=True)
    return model


def checked(weights: Any, config: MambaConfig, source: str) -> dict[str, Tensor]:
    """The weights, checked against the config; a tied head only under the embedding's name.

    Raises:
        ValueError: for names, shapes or types that are not the model's, and a tied head that differs from the
            embedding.
    """
    if not isinstance(weights, dict):
        raise ValueError(f"{source}: there is a {type(weights).__name__}, expected a dict from names to tensors")
    found = {}
    for name, shape in model_shapes(config):  # stops at the first missing one, however large the config's n_layer is
        if name not in weights:
            raise ValueError(f"{source}: {name} is missing")
        found[name] = _checked(weights[name], name, shape, source)
    if config.tie_embeddings and HEAD in weights:
        head = _checked(weights[HEAD], HEAD, tuple(found[EMBEDDING].shape), source)
        if not is_same(head, found[EMBEDDING]):
            raise ValueError(f"{source}: {HEAD} is not {EMBEDDING}, but the config has tie_embeddings")
    for name in weights:
        if name not in found and not (name == HEAD and config.tie_embeddings):
            raise ValueError(f"{source}: {name} is not a parameter of this model")
    return found


def _checked(value: Any, name: str, shape: tuple[int, ...], source: str) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{source}: {name} is {kind}, expected a tensor of floats")
    if tuple(value.shape) != shape:
        raise ValueError(f"{source}: {name} has shape {tuple(value.shape)}, expected {shape}")
    return value


def stored(model: LanguageModel, source: str) -> dict[str, Tensor]:
    """The weights by their names in files: without `torch.compile`'s prefix, a tied head only as the embedding.

    Raises:
        TypeError: for a module that is no language model.
        ValueError: for a model whose parameters are no longer those of its config.
    """
    check_model(source, model)
    weights = {name.replace(COMPILED, ""): value.detach() for name, value in model.state_dict().items()}
    return checked(weights, model.config, source)


def save(model: LanguageModel, folder: str | Path) -> None:
    """Write config.json and model.safetensors, each to a temporary file first, so that a reader sees whole files.

    Args:
        model: the model, whole or in parts wrapped by `torch.compile`.
        folder: created if missing. The two files are removed from its SHA256SUMS.

    Raises:
        TypeError: for a module that is no language model.
        ValueError: for a model whose parameters are no longer those of its config.
    """
    weights = {name: value.contiguous() for name, value in stored(model, "save").items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    checksums.forget(folder, (CONFIG, WEIGHTS))
    temporary = folder / f"{WEIGHTS}.new"
    save_file(weights, temporary)
    os.replace(temporary, folder / WEIGHTS)
    temporary = folder / f"{CONFIG}.new"
    temporary.write_text(json.dumps(model.config.to_dict(), indent=2) + "\n")
    os.replace(temporary, folder / CONFIG)
