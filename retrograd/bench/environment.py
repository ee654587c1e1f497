"""Where and when a measurement is made: the part of a row that is the same for a whole run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retrograd import __version__


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every row of a run shares."""

    gpu: str
    commit: str
    date: str


def stamp(gpu: str) -> Stamp:
    """The stamp of a run that begins now."""
    return Stamp(gpu, commit(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def commit() -> str:
    """The commit of the code; RETROGRAD_COMMIT says it where the code travels without its history."""
    if given := os.environ.get("RETROGRAD_COMMIT"):
        return given
    try:
        git(
            "ls-files", "--error-unmatch", Path(__file__).name
        )  # an installed copy may lie in someone else's repository
        return git("describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*arguments: str) -> str:
    """What git answers in this file's folder."""
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The installed version of each distribution that is there, after retrograd's own; nothing is imported."""
    found = {"retrograd": __version__}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def folder_name(gpu: str) -> str:
    """A GPU's name as a folder of benchmarks/results: `NVIDIA H200` is `h200`."""
    words = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return re.sub(r"^(nvidia|amd)-", "", words)
