"""SHA256SUMS: what files of a folder were when they were written, in the form that `sha256sum --check` reads.

A folder may be without one, as other libraries' checkpoints are; then nothing is known of its files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def write(folder: Path, names: Iterable[str]) -> None:
    """List these files of a folder and no others, from one moment to the next."""
    names = sorted(names)
    with ThreadPoolExecutor() as pool:  # hashlib lets other threads run
        _write(folder, dict(zip(names, pool.map(lambda name: digest(folder / name), names), strict=True)))


def forget(folder: Path, names: Iterable[str]) -> None:
    """List these files no longer, because they are about to change."""
    if (folder / SUMS).exists():
        sums = read(folder)
        if left := sums.keys() & set(names):
            _write(folder, {name: value for name, value in sums.items() if name not in left})


def check(path: Path, *, listed: bool = False) -> None:
    """Raise for a file that is not what SHA256SUMS, where it really lies, says of it.

    Args:
        path: the file, or a link to it.
        listed: whether it has to be listed.

    Raises:
        ValueError: it is another, or not listed.
        OSError: it is not there, or the list that has to be.
    """
    path = path.resolve()
    if not listed and not (path.parent / SUMS).exists():
        return
    expected = read(path.parent).get(path.name)
    if expected is None:
        if listed:
            raise ValueError(f"{path} is not listed in {SUMS} beside it")
    elif digest(path) != expected:
        raise ValueError(f"{path} is not the file that {SUMS} beside it lists: changed, or damaged")


def read(folder: Path) -> dict[str, str]:
    """Digests by name; lines of another form list nothing.

    Raises:
        OSError: there is no such file.
    """
    lines = (folder / SUMS).read_bytes().decode(errors="replace").splitlines()
    return {found[2]: found[1] for line in lines if (found := LINE.fullmatch(line))}


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(folder: Path, sums: dict[str, str]) -> None:
    beside = folder / f"{SUMS}.new"
    beside.write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    os.replace(beside, folder / SUMS)
