"""Creating and locking the folder of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrograd.nn import checksums

from .data import HELD_OUT, TRAINING, Split, Windows, write
from .settings import SETTINGS, Settings


def start(folder: Path, settings: Settings, split: Split) -> None:
    """Create a run's folder, with its settings and its text; it is removed if that fails.

    Raises:
        FileExistsError: the path exists.
        ValueError: the text is too short for one window.
    """
    folder.mkdir(parents=True)
    try:
        write(split, folder)
        Windows(folder / TRAINING, settings.preset.time)
        Windows(folder / HELD_OUT, settings.preset.eval_time)
        settings.write(folder)
        checksums.write(folder, (SETTINGS, TRAINING, HELD_OUT))  # last: without it there is no run yet
    except BaseException:
        shutil.rmtree(folder)
        raise


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a run, so that no other process trains it; the system releases the lock when this process ends.

    Raises:
        ValueError: another process holds the lock.
    """
    import fcntl  # not on Windows, where the other commands should still work

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process trains the run in {folder}") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def free(folder: Path) -> Path:
    """This folder, or if it exists the first of `-2`, `-3`, ... that does not."""
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate
