"""Text as bytes: the choice of files, the held-out ones, and windows in shuffled order."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

TRAINING, HELD_OUT = "training.bin", "held_out.bin"
HELD_OUT_SHARE = 0.05
SEPARATOR = b"\0"  # between two files
# Installed packages, tests, and `encodings`, which holds tables of numbers.
NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}


class Split(NamedTuple):
    """The files of both parts and their description; if no file is held out, the end of the joined text is."""

    training: list[Path]
    held_out: list[Path]
    source: str


def stdlib() -> Split:
    """The source of the standard library of this Python."""
    root = Path(sysconfig.get_path("stdlib"))
    return split(root, (p for p in root.rglob("*.py") if not NOT_STDLIB.intersection(p.relative_to(root).parts)))


def text_at(place: Path) -> Split:
    """A text file, or all files below a folder except hidden ones.

    Raises:
        ValueError: the path does not exist, or is a folder without text.
    """
    if place.is_file():
        return Split([place], [], f"{place}, the last {HELD_OUT_SHARE:.0%} held out")
    if not place.is_dir():
        raise ValueError(f"data is {str(place)!r}, expected a file or a folder that exists")
    found = split(place, (p for p in place.rglob("*") if not any(s[0] == "." for s in p.relative_to(place).parts)))
    if not found.training:
        raise ValueError(f"data is {str(place)!r}, a folder without text")
    return found


def split(root: Path, paths: Iterable[Path]) -> Split:
    """Files in the order of their names; the hash of its name decides whether a file is held out.

    Files go to the held-out part in the order of their hashes, as long as they fit into its share.
    """
    sizes = {path.relative_to(root).as_posix(): path.stat().st_size for path in paths if path.is_file()}
    names = sorted(name for name, size in sizes.items() if size)
    budget = round(sum(sizes.values()) * HELD_OUT_SHARE)
    chosen: set[str] = set()
    for name in sorted(names, key=lambda name: hashlib.sha256(os.fsencode(name)).digest()):
        if sizes[name] <= budget:
            chosen.add(name)
            budget -= sizes[name]
    training, held_out = ([root / name for name in names if (name in chosen) == wanted] for wanted in (False, True))
    share = f"{len(held_out)} of them" if held_out else f"the last {HELD_OUT_SHARE:.0%}"
    return Split(training, held_out, f"{root}, {len(names)} files, {share} held out")


def write(split: Split, folder: Path) -> None:
    """Join the files of both parts into two, for `Windows` to map."""
    training, held_out = folder / TRAINING, folder / HELD_OUT
    join(split.training, training)
    join(split.held_out, held_out)
    if not split.held_out:
        size = training.stat().st_size
        cut = size - round(size * HELD_OUT_SHARE)
        with training.open("r+b") as text, held_out.open("wb") as end:
            text.seek(cut)
            shutil.copyfileobj(text, end)
            text.truncate(cut)


def join(paths: Sequence[Path], target: Path) -> None:
    """Join files into one, with separators between them."""
    with target.open("wb") as joined:
        for number, path in enumerate(paths):
            if number:
                joined.write(SEPARATOR)
            with path.open("rb") as text:
                shutil.copyfileobj(text, joined)


class Windows:
    """Windows of a memory-mapped file of bytes: T inputs and, shifted by one, T bytes to predict.

    Every byte except the file's first and fewer than T at its end is predicted in exactly one window.

    Args:
        path: the file.
        time: T.

    Raises:
        ValueError: the file is too short for one window.
    """

    def __init__(self, path: Path, time: int) -> None:
        size = path.stat().st_size
        self.count = (size - 1) // time
        if self.count < 1:
            name = path.stem.replace("_", "-")
            raise ValueError(f"the {name} text has {size} bytes, expected at least {time + 1}, one window")
        self.time = time
        self.bytes = np.memmap(path, np.uint8, "r")

    def take(self, numbers: Iterable[int]) -> np.ndarray:
        """Windows by number, (B, T + 1), int64."""
        starts = (int(number) * self.time for number in numbers)
        return np.stack([self.bytes[i : i + self.time + 1] for i in starts]).astype(np.int64)

    def batch(self, seed: int, step: int, size: int) -> np.ndarray:
        """The windows of a step: a function of seed and step alone, so that a run can resume at any step.

        The windows are shuffled anew for each epoch; a batch may end one epoch and begin the next.
        """
        places = range(step * size, (step + 1) * size)
        return self.take(shuffled(self.count, seed, place // self.count)[place % self.count] for place in places)

    def spread(self, most: int) -> list[int]:
        """The numbers of `most` evenly spaced windows, or of all if there are fewer."""
        count = min(most, self.count)
        return [i * self.count // count for i in range(count)]


@lru_cache(maxsize=2)
def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the windows in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)
