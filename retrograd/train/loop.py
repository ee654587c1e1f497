"""The training loop."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from retrograd.nn import LanguageModel, checksums

from . import checkpoint, metrics
from .bigram import Bigram
from .data import HELD_OUT, TRAINING, Windows
from .learner import Learner
from .metrics import CURVE, METRICS, VERDICT, Row
from .presets import Preset
from .ranks import Ranks
from .settings import Settings
from .torch_learner import TorchLearner

ADVICE = "a lower learning rate may help"


class Trainer:
    """A run in a folder, from its last checkpoint or from the start.

    Args:
        folder: of the run, with its text and settings, see `start`.
        settings: of the run.
        ranks: the processes that train it together; the first one writes the run's files.
        shard: whether each of several processes has a part of the parameters, in PyTorch; the bits are the same.

    Attributes:
        learner: the model and its optimiser.
        step: steps done.

    Raises:
        ValueError: for a text shorter than one window, a checkpoint of another model, and files that differ from
            the run's SHA256SUMS.
        OSError: for missing files.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from retrograd.train import Settings, Trainer, preset, reproducible, start, stdlib
        >>> folder, text = Path(tempfile.mkdtemp()) / "run", stdlib()
        >>> settings = Settings(name="tiny", preset=preset("tiny"), source=text.source)
        >>> start(folder, settings, text)
        >>> with reproducible(settings.threads):
        ...     trainer = Trainer(folder, settings)
        ...     trainer.run(report=lambda row: None, stop=lambda: False)
        >>> trainer.step, (folder / "model.safetensors").exists()
        (20, True)
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        ranks: Ranks = Ranks(),  # noqa: B008  # it is immutable
        shard: bool = False,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.ranks = ranks
        self.preset = preset = settings.preset
        for name in (TRAINING, HELD_OUT):
            checksums.check(folder / name, listed=True)
        self.training = Windows(folder / TRAINING, preset.time)
        self.held_out = Windows(folder / HELD_OUT, preset.eval_time)
        self.learner = learner_of(settings, ranks, shard)
        self.step = 0
        if os.path.lexists(folder / checkpoint.CURRENT):  # a dangling link is damage, not a run that has not started
            self.step = checkpoint.read(folder, preset.steps, self.learner)
            if ranks.first:
                checkpoint.restore_metrics(folder)
        elif ranks.first:
            (folder / METRICS).unlink(missing_ok=True)
        self.learner.collect()

    @property
    def model(self) -> LanguageModel:
        """The model, parameters in float32."""
        return self.learner.model

    def run(self, report: Callable[[Row], None], stop: Callable[[], bool]) -> None:
        """Train to the last step, or until `stop` returns True; either way the last step is checkpointed.

        Args:
            report: called with every row of the metrics as it is written.
            stop: called after every step.

        Raises:
            FloatingPointError: a loss is not a finite number; the last checkpoint stays.
            LostError: another process is gone; likewise.
        """
        preset = self.preset
        losses: list[Any] = []
        rates: list[float] = []
        since = time.perf_counter()
        while self.step < preset.steps:
            rates.append(preset.lr * lr_factor(self.step, preset))
            windows = self.training.batch(self.settings.seed, self.step, preset.batch)
            losses.append(self.learner.step(windows, rates[-1]))
            self.step += 1
            last = self.ranks.any(stop()) or self.step == preset.steps
            due = self.step % preset.every == 0
            if last or due or self.step % preset.log_every == 0:
                values = self.learner.numbers(losses)
                self._log(values, rates, time.perf_counter() - since, report)
                if last or due:
                    self.learner.collect()
                if due and self.step < preset.steps and self.ranks.first:
                    bits = self.bits_per_byte(preset.eval_windows)
                    self._write([self._row(self.step) | {"held_out_bits_per_byte": bits}], report)
                if (last or due) and self.ranks.first:
                    checkpoint.write(self.folder, self.step, self.learner)
                losses, rates, since = [], [], time.perf_counter()
            if last:
                break

    def finish(self) -> Row:
        """Evaluate the model and the bigram model on the same held-out bytes; returns the last row of the metrics."""
        row = self._row(self.step) | {
            "held_out_bits_per_byte": self.bits_per_byte(self.preset.final_windows),
            VERDICT: self.bigram,
            "held_out_bytes": self._held_out(self.preset.final_windows)[:, 1:].size,
        }
        metrics.append(self.folder / METRICS, [row])
        return row

    @cached_property
    def bigram(self) -> float:
        """Bits per byte of the bigram model on the bytes of the last evaluation."""
        return Bigram(self.training.bytes).bits_per_byte(self._held_out(self.preset.final_windows))

    def draw(self) -> None:
        """Draw the loss curve from the metrics."""
        title = f"preset {self.settings.name}, {parameters(self.model):,} parameters, on {self.settings.device}"
        metrics.draw(metrics.read(self.folder / METRICS), self.folder / CURVE, title=title, bigram=self.bigram)

    def bits_per_byte(self, most: int) -> float:
        """The mean over at most `most` evenly spaced windows of the held-out text."""
        windows, size = self._held_out(most), self.preset.batch
        parts = [windows[start : start + size] for start in range(0, len(windows), size)]
        total = sum(self.learner.loss(part) * len(part) for part in parts)
        if not math.isfinite(total):
            raise FloatingPointError(f"the held-out loss after step {self.step} is {total}; {ADVICE}")
        return total / len(windows) / math.log(2)

    def _held_out(self, most: int) -> np.ndarray:
        return self.held_out.take(self.held_out.spread(most))

    def _row(self, step: int) -> dict[str, Any]:
        return {"step": step, "tokens": step * self.preset.batch * self.preset.time}

    def _log(self, losses: list[float], rates: list[float], seconds: float, report: Callable[[Row], None]) -> None:
        first = self.step - len(losses) + 1
        speed = round(len(losses) * self.preset.batch * self.preset.time / seconds)
        rows = []
        for step, (loss, lr) in enumerate(zip(losses, rates, strict=True), first):
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss of step {step} is {loss}; {ADVICE}")
            of_step = {"loss": loss, "bits_per_byte": loss / math.log(2), "lr": lr, "tokens_per_s": speed}
            rows.append(self._row(step) | of_step)
        self._write(rows, report)

    def _write(self, rows: Sequence[Row], report: Callable[[Row], None]) -> None:
        if not self.ranks.first:
            return
        metrics.append(self.folder / METRICS, rows)
        for row in rows:
            report(row)


def check_shard(settings: Settings) -> None:
    """Raise ValueError for runs whose parameters cannot be sharded."""
    if settings.framework == "jax" or settings.compile:
        other = "the framework jax" if settings.framework == "jax" else "compile True"
        raise ValueError(f"shard is True, expected False, since it is not for {other}")


def learner_of(
    settings: Settings,
    ranks: Ranks = Ranks(),  # noqa: B008  # it is immutable
    shard: bool = False,
) -> Learner:
    """A learner with the parameters that the settings' seed draws.

    Raises:
        ValueError: for shards in JAX or under torch.compile.
    """
    if shard:
        check_shard(settings)
    if shard and ranks.world > 1:
        from .sharded import ShardedLearner  # slow to import

        return ShardedLearner(settings, ranks)
    if settings.framework == "torch":
        return TorchLearner(settings, ranks)
    from .jax_learner import JaxLearner  # needs jax and optax

    return JaxLearner(settings)


def parameters(model: nn.Module) -> int:
    """The number of trainable values in a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def lr_factor(step: int, preset: Preset) -> float:
    """The learning rate of a step, counted from 0, over the highest: linear warm-up, then half a cosine down to 0."""
    warmup = max(1, round(preset.warmup * preset.steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, preset.steps - warmup)))
