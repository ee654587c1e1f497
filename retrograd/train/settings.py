"""All that a run's result depends on, kept beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retrograd.nn import checksums

from .presets import Preset

SETTINGS = "settings.json"
MOST_SEEDS = 2**63
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run's settings: two runs that share them, the text and the versions of Python and torch end in the same bits.

    Attributes:
        name: of the preset.
        preset: sizes of the model and of the training, changed where the user asked for it.
        data: the text that was asked for, None for the standard library.
        source: in words, what the text is.
        seed: of the parameters and of the order of windows.
        device: `cpu` or `cuda`.
        compile: whether the model runs through torch.compile.
        threads: of the CPU; sums are cut where their work is.

    Raises:
        ValueError: for less than 1 step, a seed that 63 bits do not hold, a dtype that is not one of `DTYPES`.
    """

    name: str
    preset: Preset
    source: str
    data: str | None = None
    seed: int = 0
    device: str = "cpu"
    compile: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        if self.preset.steps < 1:
            raise ValueError(f"steps is {self.preset.steps}, expected 1 or more")
        if not 0 <= self.seed < MOST_SEEDS:
            raise ValueError(f"seed is {self.seed}, expected 0 to 2^63 - 1")
        if self.preset.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.preset.dtype!r}, expected {' or '.join(DTYPES)}")

    def write(self, folder: Path) -> None:
        """Into a run's folder."""
        given = asdict(self) | {"preset": self.preset.to_dict()}
        (folder / SETTINGS).write_text(json.dumps(given, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """From a run's folder.

        Raises:
            ValueError: there is none, none that can be read, or another than the run began with.
        """
        for name in (checksums.SUMS, SETTINGS):
            if not (folder / name).is_file():
                raise ValueError(f"{folder} is not the folder of a run: it has no {name}")
        checksums.check(folder / SETTINGS, listed=True)
        try:
            given: Mapping[str, Any] = json.loads((folder / SETTINGS).read_bytes())
            return cls(**{**given, "preset": Preset.from_dict(given["preset"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / SETTINGS} cannot be read: {error}") from None
