"""Model, optimiser and metrics of one step on disk, whole or not at all, whenever the process may be killed.

A run's folder holds `checkpoint-<step>/`, and a symbolic link `checkpoint` to it. The next one is written beside and
brought to the disk, and only then a new link is renamed over the old one: all that is in it changes together.
`config.json` and `model.safetensors` in the run's folder lead through the same link, so that `retrograd.nn.load(run)`
finds the last model. `SHA256SUMS` in it lists every file, and none is read that is another.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from retrograd.nn import LanguageModel, checksums, load, save
from retrograd.nn.files import CONFIG, WEIGHTS

from .metrics import METRICS

CURRENT = "checkpoint"
OPTIMISER, PROGRESS = "optimizer.safetensors", "progress.json"
FILES = (CONFIG, WEIGHTS, OPTIMISER, PROGRESS, METRICS)


def write(run: Path, step: int, model: LanguageModel, optimizer: torch.optim.Optimizer) -> None:
    """Make this step the run's checkpoint; the one before is deleted."""
    current, made = run / CURRENT, run / f"{CURRENT}-{step}"
    if current.exists() and current.resolve() == made.resolve():
        return
    shutil.rmtree(made, ignore_errors=True)
    save(model, made)
    save_file(moments(optimizer), made / OPTIMISER)
    (made / PROGRESS).write_text(json.dumps({"step": step}) + "\n")
    shutil.copyfile(run / METRICS, made / METRICS)
    checksums.write(made, FILES)
    for path in (*made.iterdir(), made):
        sync(path)
    if current.is_dir() and not current.is_symlink():  # a copy of a run that followed the links
        os.replace(current, run / f"{CURRENT}-copied")
    link(current, made.name)
    for name in (CONFIG, WEIGHTS):
        if not (run / name).is_symlink():
            link(run / name, f"{CURRENT}/{name}")
    sync(run)
    delete_others(run)


def read(run: Path, steps: int, model: LanguageModel, optimizer: torch.optim.Optimizer) -> int:
    """Restore model, optimiser and metrics; gives the step, of so many.

    Raises:
        ValueError: the checkpoint is damaged, or one of another run.
    """
    folder = run / CURRENT
    try:
        for name in FILES:
            checksums.check(folder / name, listed=True)
        step = read_step(folder / PROGRESS, steps)
        saved = load(folder)
        if saved.config != model.config:
            raise ValueError(f"{folder} is of another shape than the run's settings say")
        model.load_state_dict(saved.state_dict())
        restore(load_file(folder / OPTIMISER), optimizer)
        copy_over(folder / METRICS, run / METRICS)
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from None
    return step


def read_step(path: Path, steps: int) -> int:
    """The step of a checkpoint, at most a run's last.

    Raises:
        ValueError: there is none, or another.
    """
    try:
        step = json.loads(path.read_bytes())["step"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} names no step: {error}") from None
    if type(step) is not int or not 0 <= step <= steps:
        raise ValueError(f"{path}: step is {step!r}, expected an integer from 0 to {steps}, the run's steps")
    return step


def copy_over(path: Path, target: Path) -> None:
    """A copy in place of a file, which is the old one or the new one at every moment."""
    beside = target.with_name(f"{target.name}.new")
    shutil.copyfile(path, beside)
    os.replace(beside, target)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's arrays, each under its parameter's name and its own."""
    packed = optimizer.state_dict()
    return {
        f"{name}/{key}": value.contiguous()
        for group in packed["param_groups"]
        for number, name in zip(group["params"], group["param_names"], strict=True)
        for key, value in packed["state"].get(number, {}).items()
    }


def restore(arrays: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """The way back.

    Raises:
        ValueError: for arrays of other names or shapes.
    """
    packed = optimizer.state_dict()
    packed["state"] = {}
    left = dict(arrays)
    for group, own in zip(packed["param_groups"], optimizer.param_groups, strict=True):
        for number, name, parameter in zip(group["params"], group["param_names"], own["params"], strict=True):
            state = {key: left.pop(f"{name}/{key}") for key in ("step", "exp_avg", "exp_avg_sq")} if arrays else {}
            for key in state.keys() - {"step"}:
                if state[key].shape != parameter.shape:
                    shapes = f"{tuple(state[key].shape)}, expected {tuple(parameter.shape)}"
                    raise ValueError(f"{OPTIMISER}: {name}/{key} has shape {shapes}")
            packed["state"][number] = state
    if left:
        raise ValueError(f"{OPTIMISER}: {next(iter(left))} is of no parameter of this model")
    if arrays:
        optimizer.load_state_dict(packed)


def link(path: Path, target: str) -> None:
    """A symbolic link, in place of one that may be there: at no moment is there none."""
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    os.replace(beside, path)


def delete_others(run: Path) -> None:
    """Delete the checkpoints that are not the run's: earlier ones, and what a kill left unfinished."""
    current = (run / CURRENT).resolve()
    for folder in run.glob(f"{CURRENT}-*"):
        if folder.resolve() != current:
            shutil.rmtree(folder)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
