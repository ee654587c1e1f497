"""A small text, and training runs on it with the tiny preset."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrograd.train import DEFAULT, Row, Settings, Trainer, preset, reproducible, start, text_at

WORDS = ("def ", "return ", "self", "(", ")", ":\n    ", "x", " = ", "é", "\n")
WEIGHTS, OPTIMISER, METRICS = "model.safetensors", "checkpoint/optimizer.safetensors", "metrics.jsonl"


def write_text(path: Path, words: int = 2000, seed: int = 0) -> Path:
    """Write a file of randomly drawn words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(random.Random(seed).choices(WORDS, k=words)).encode())
    return path


def new_trainer(folder: Path, **changed: Any) -> Trainer:
    """A new run; `changed` are fields of the preset or of the settings."""
    text = write_text(folder.parent / "text.txt")
    names = ("seed", "compile", "arch", "framework", "slots", "context_parallel")
    of_settings = {key: changed.pop(key) for key in names if key in changed}
    fields: dict[str, Any] = {"seed": 0, "compile": False, "arch": DEFAULT} | of_settings
    settings = Settings(
        name="tiny",
        preset=replace(preset("tiny", fields["arch"]), **changed),
        data=str(text),
        source="drawn",
        device="cpu",
        threads=1,
        **fields,
    )
    start(folder, settings, text_at(text))
    return Trainer(folder, replace(settings, context_parallel=1))  # others are for several processes


def go_on(folder: Path) -> Trainer:
    """Resume an existing run from its last checkpoint."""
    return Trainer(folder, Settings.read(folder))


def train(trainer: Trainer, stop_after: int | None = None) -> list[Row]:
    """Train to the end or to step `stop_after`; return the reported rows."""
    rows: list[Row] = []
    with reproducible(trainer.settings.threads):
        trainer.run(rows.append, lambda: trainer.step == stop_after)
    return rows


def bits(folder: Path) -> tuple[bytes, bytes]:
    """The bytes of the model and of the optimiser in the checkpoint."""
    return (folder / WEIGHTS).read_bytes(), (folder / OPTIMISER).read_bytes()
