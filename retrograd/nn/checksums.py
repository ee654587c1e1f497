"""SHA256SUMS: digests of a folder's files as they were written, in the format that `sha256sum --check` reads.

A folder may have none, such as another library's checkpoint; then its files are not checked.
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
    """List exactly these files of a folder, replacing the old list atomically."""
    names = sorted(names)
    with ThreadPoolExecutor() as pool:  # hashlib releases the GIL
        _write(folder, dict(zip(names, pool.map(lambda name: digest(folder / name), names), strict=True)))


def forget(folder: Path, names: Iterable[str]) -> None:
    """Remove these files from the list, because they are about to change."""
    if (folder / SUMS).exists():
        sums = read(folder)
        if left := sums.keys() & set(names):
            _write(folder, {name: value for name, value in sums.items() if name not in left})


def check(path: Path, *, listed: bool = False) -> None:
    """Raise for a file whose digest differs from SHA256SUMS in its folder, after following links.

    Args:
        path: the file, or a link to it.
        listed: whether the file has to be listed.

    Raises:
        ValueError: the digest differs, or the file is not listed but has to be.
        OSError: the file is missing, or the list where the file has to be listed.
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
    """Digests by name; malformed lines are ignored.

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
    temporary = folder / f"{SUMS}.new"
    temporary.write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))
    os.replace(temporary, folder / SUMS)
