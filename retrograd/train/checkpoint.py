"""Atomic checkpoints on disk, of model, optimiser and metrics: complete even if the process is killed at any time.

A run's folder holds `checkpoint-<step>/`, and a symbolic link `checkpoint` to it. The next one is written next to it
and flushed to disk, and only then a new link is renamed over the old one, so that all files change together.
`config.json` and `model.safetensors` in the run's folder are links through `checkpoint`, so that
`retrograd.nn.load(run)` finds the last model. Its `SHA256SUMS` lists every file; one that differs is refused.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from retrograd.nn import checksums, load, save
from retrograd.nn.files import CONFIG, WEIGHTS

from .learner import Learner
from .metrics import METRICS

CURRENT = "checkpoint"
OPTIMISER, PROGRESS = "optimizer.safetensors", "progress.json"
FILES = (CONFIG, WEIGHTS, OPTIMISER, PROGRESS, METRICS)


def write(run: Path, step: int, learner: Learner) -> None:
    """Write this step as the run's checkpoint; the previous one is deleted."""
    current, folder = run / CURRENT, run / f"{CURRENT}-{step}"
    if current.exists() and current.resolve() == folder.resolve():
        return
    shutil.rmtree(folder, ignore_errors=True)
    save(learner.model, folder)
    save_file(learner.moments(), folder / OPTIMISER)
    (folder / PROGRESS).write_text(json.dumps({"step": step}) + "\n")
    shutil.copyfile(run / METRICS, folder / METRICS)
    checksums.write(folder, FILES)
    for path in (*folder.iterdir(), folder):
        sync(path)
    if current.is_dir() and not current.is_symlink():  # a copy of a run that followed the links
        os.replace(current, run / f"{CURRENT}-copied")
    link(current, folder.name)
    for name in (CONFIG, WEIGHTS):
        if not (run / name).is_symlink():
            link(run / name, f"{CURRENT}/{name}")
    sync(run)
    delete_others(run)


def read(run: Path, steps: int, learner: Learner) -> int:
    """Restore model and optimiser; returns the step, at most `steps`.

    Raises:
        ValueError: the checkpoint is damaged, or belongs to another run.
    """
    folder = run / CURRENT
    try:
        for name in FILES:
            checksums.check(folder / name, listed=True)
        step = read_step(folder / PROGRESS, steps)
        saved = load(folder)
        if saved.config != learner.config:
            raise ValueError(f"{folder} is of another shape than the run's settings say")
        learner.restore(saved, load_file(folder / OPTIMISER))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from None
    return step


def restore_metrics(run: Path) -> None:
    """Take the metrics back to the last checkpoint.

    Raises:
        ValueError: they cannot be read.
    """
    try:
        copy_over(run / CURRENT / METRICS, run / METRICS)
    except OSError as error:
        raise ValueError(f"{run / CURRENT} cannot be read: {error}") from None


def read_step(path: Path, steps: int) -> int:
    """The step of a checkpoint, at most `steps`.

    Raises:
        ValueError: the step is missing or out of range.
    """
    try:
        step = json.loads(path.read_bytes())["step"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} names no step: {error}") from None
    if type(step) is not int or not 0 <= step <= steps:
        raise ValueError(f"{path}: step is {step!r}, expected an integer from 0 to {steps}, the run's steps")
    return step


def copy_over(path: Path, target: Path) -> None:
    """Replace the target by a copy of a file, atomically."""
    temporary = target.with_name(f"{target.name}.new")
    shutil.copyfile(path, temporary)
    os.replace(temporary, target)


def link(path: Path, target: str) -> None:
    """Create a symbolic link, replacing an existing one atomically."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


def delete_others(run: Path) -> None:
    """Delete all checkpoints but the current one: earlier ones, and unfinished ones that a kill left."""
    current = (run / CURRENT).resolve()
    for folder in run.glob(f"{CURRENT}-*"):
        if folder.resolve() != current:
            shutil.rmtree(folder)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
