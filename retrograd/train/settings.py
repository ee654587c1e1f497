"""The settings that a run's result depends on, kept in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retrograd.nn import checksums

from .presets import DEFAULT, Preset

SETTINGS = "settings.json"
MOST_SEEDS = 2**63
DTYPES = ("float32", "bfloat16")
FRAMEWORKS = ("torch", "jax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run's settings: two runs that share them, the text and the versions of Python and torch end in the same bits.

    Attributes:
        name: of the preset.
        arch: of the model, one of `ARCHITECTURES`.
        framework: `torch` or `jax`.
        preset: sizes of the model and of the training, with the user's changes.
        data: the path of the text, None for the standard library.
        source: description of the text.
        seed: of the parameters and of the order of windows.
        device: `cpu` or `cuda`.
        compile: whether the model runs through torch.compile.
        threads: of the CPU; their number determines how sums are split.
        slots: parts of a batch, each computed alone; gradients are added in one order, on any number of processes that
            divides them, see `retrograd.distributed.Slots`.
        context_parallel: processes that divide the steps of each sequence, see `retrograd.distributed.ContextParallel`.

    Raises:
        ValueError: for less than 1 step or byte of a sequence, a seed that does not fit in 63 bits, a dtype or
            framework that is not known, torch.compile or slots in JAX, slots that do not divide the batch, sequences
            divided in JAX or under torch.compile.
    """

    name: str
    preset: Preset
    source: str
    arch: str = DEFAULT
    framework: str = "torch"
    data: str | None = None
    seed: int = 0
    device: str = "cpu"
    compile: bool = False
    threads: int = 1
    slots: int = 1
    context_parallel: int = 1

    def __post_init__(self) -> None:
        if self.preset.steps < 1:
            raise ValueError(f"steps is {self.preset.steps}, expected 1 or more")
        if self.preset.time < 1:
            raise ValueError(f"time is {self.preset.time}, expected 1 or more")
        if not 0 <= self.seed < MOST_SEEDS:
            raise ValueError(f"seed is {self.seed}, expected 0 to 2^63 - 1")
        if self.preset.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.preset.dtype!r}, expected {' or '.join(DTYPES)}")
        if self.framework not in FRAMEWORKS:
            raise ValueError(f"framework is {self.framework!r}, expected {' or '.join(FRAMEWORKS)}")
        if self.framework == "jax" and self.compile:
            raise ValueError("compile is True, but it is of torch, and the framework jax")
        if self.framework == "jax" and self.slots != 1:
            raise ValueError(f"slots is {self.slots}, but they are of torch, and the framework jax")
        if self.slots < 1 or self.preset.batch % self.slots:
            raise ValueError(f"slots is {self.slots}, expected a number that divides the batch of {self.preset.batch}")
        if not 1 <= self.context_parallel <= self.preset.time:
            expected = f"1 to {self.preset.time}, the steps of a sequence"
            raise ValueError(f"context_parallel is {self.context_parallel}, expected {expected}")
        if self.context_parallel > 1 and (self.framework == "jax" or self.compile):
            other = "the framework jax" if self.framework == "jax" else "compile True"
            raise ValueError(f"context_parallel is {self.context_parallel}, expected 1, since it is not for {other}")

    def write(self, folder: Path) -> None:
        """Write the settings into a run's folder."""
        contents = asdict(self) | {"preset": self.preset.to_dict()}
        (folder / SETTINGS).write_text(json.dumps(contents, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Read the settings from a run's folder.

        Raises:
            ValueError: the settings are missing, cannot be read, or differ from those that the run began with.
        """
        for name in (checksums.SUMS, SETTINGS):
            if not (folder / name).is_file():
                raise ValueError(f"{folder} is not the folder of a run: it has no {name}")
        checksums.check(folder / SETTINGS, listed=True)
        try:
            contents: Mapping[str, Any] = json.loads((folder / SETTINGS).read_bytes())
            return cls(**{**contents, "preset": Preset.from_dict(contents["preset"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / SETTINGS} cannot be read: {error}") from None
