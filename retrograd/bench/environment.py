"""GPU, commit, date and versions of a measurement."""

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
    """The fields that are the same in every row of a run."""

    gpu: str
    commit: str
    date: str


def stamp(gpu: str) -> Stamp:
    """The stamp of a run that starts now."""
    return Stamp(gpu, commit(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def commit() -> str:
    """The commit of the code; for a copy without git history, set RETROGRAD_COMMIT."""
    if override := os.environ.get("RETROGRAD_COMMIT"):
        return override
    try:
        # Fails for a copy installed inside another repository.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*arguments: str) -> str:
    """Run git in this file's folder and return its output."""
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The version of retrograd and of each installed distribution; nothing is imported."""
    found = {"retrograd": __version__}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def folder_name(gpu: str) -> str:
    """A GPU's folder in benchmarks/results: `h200` for `NVIDIA H200`."""
    words = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return re.sub(r"^(nvidia|amd)-", "", words)
