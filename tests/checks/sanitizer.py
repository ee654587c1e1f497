"""Runs a script under NVIDIA's compute-sanitizer, and parses its reports.

`memcheck` finds accesses out of bounds, `racecheck` finds unordered pairs of accesses to shared memory. Pairs that the
tool reports although a barrier orders them are listed, each with its barrier, in a file of known hazards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Tool = Literal["memcheck", "racecheck"]
ROOT = Path(__file__).resolve().parents[2]
PREFIX = "========="
# Full file paths; all reports, not only the first 100; only the script, not the compilers that it starts. By default
# the tool infers the number of mbarriers from compiler information, and more than that confuse it.
COMMON = (
    "--strip-paths",
    "no",
    "--print-limit",
    "0",
    "--show-backtrace",
    "no",
    "--target-processes",
    "application-only",
)
OF_TOOL: dict[Tool, tuple[str, ...]] = {
    "memcheck": (),
    "racecheck": ("--racecheck-report", "analysis", "--num-cuda-barriers", "64"),
}
# PyTorch's caching allocator returns parts of large blocks, so an access beyond an array's end may stay in bounds.
ALLOCATES_EACH = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

NOT_REPORTS = ("COMPUTE-SANITIZER", "Target application", "LEAK SUMMARY")  # lines that the tool does not count
FAILED = "process didn't terminate successfully"

_RACE = re.compile(r"^(?:(?P<severity>\w+): )?Race reported between (?P<access>.+)$")
_OTHER = re.compile(r"^and (?P<access>.+)$")
_ACCESS = re.compile(r"^(?P<kind>\w+) access at (?P<at>.+?)(?: \[(?P<hazards>\d+) hazards?\])?$")
_AT = re.compile(r"^(?P<kernel>.+)\+0x[0-9a-f]+(?: in (?P<file>.+?)(?::(?P<line>\d+))?)?$")
_PACKAGE = re.compile(r"retrograd/(?:core|ops)/.+$")
_SUMMARY = re.compile(r"^(?:RACECHECK|ERROR) SUMMARY: (?P<count>\d+) (?:hazard|error)s?\b")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source file; `line` is 0 if the tool does not report it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses that racecheck reports as unordered.

    Attributes:
        kernel: the kernel's name.
        first, second: the source lines of the accesses.
        kinds: `Read` or `Write` for each access.
        severity: as the tool reports it.
    """

    kernel: str
    first: Place
    second: Place
    kinds: tuple[str, str]
    severity: str

    def __str__(self) -> str:
        return f"{self.severity} in {self.kernel}: {self.kinds[0]} {self.first}, {self.kinds[1]} {self.second}"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a tool reports of one run.

    Attributes:
        races: reported by racecheck, each pair of places once.
        errors: the text of every other report.
        finished: whether the script ran to its end and the tool counted its reports. A process may fail after that,
            while the interpreter shuts down.
        text: the complete output.
    """

    races: tuple[Race, ...]
    errors: tuple[str, ...]
    finished: bool
    text: str


@dataclass(frozen=True, slots=True)
class Known:
    """A pair of places that is ordered although racecheck reports it.

    Attributes:
        kernel: the kernel's name.
        between: the file and lines of each side of the pair.
        ordered_by: the barriers that order them.
    """

    kernel: str
    between: tuple[tuple[str, frozenset[int]], tuple[str, frozenset[int]]]
    ordered_by: str

    def covers(self, race: Race) -> bool:
        """Whether the race is this pair, in either order."""
        if race.kernel != self.kernel:
            return False
        pairs = ((race.first, race.second), (race.second, race.first))
        return any(
            all(
                place.file == file and place.line in lines
                for place, (file, lines) in zip(pair, self.between, strict=True)
            )
            for pair in pairs
        )


def find() -> str | None:
    """The tool's path: `RETROGRAD_COMPUTE_SANITIZER`, or the one in PATH, or the CUDA toolkit's."""
    configured = os.environ.get("RETROGRAD_COMPUTE_SANITIZER")
    tool = "compute-sanitizer"
    return configured or shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")


def run(tool: Tool, script: Path, arguments: Sequence[str], log: Path | None = None, timeout: float = 600) -> Findings:
    """Run a Python script under a tool.

    Args:
        tool: `memcheck` or `racecheck`.
        script: the script, run by this Python; it must print `finished` as its last line.
        arguments: its arguments.
        log: the file to which all output is written.
        timeout: in seconds.
    """
    found = find()
    if found is None:
        raise RuntimeError("compute-sanitizer is not on this machine")
    command = [found, "--tool", tool, *COMMON, *OF_TOOL[tool], sys.executable, str(script), *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment(),
            cwd=ROOT,
            text=True,
            timeout=timeout,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        text = done.stdout
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
    if log is not None:
        log.write_text(text)
    return parse(text)


def environment() -> Mapping[str, str]:
    """The environment of a script run under a tool, or run before to fill the compiler's cache."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **ALLOCATES_EACH, "PYTHONPATH": path}


def parse(text: str, root: Path = ROOT) -> Findings:
    """Parse the output of the tool and the script; paths of files below `root` are relative to it.

    Raises:
        ValueError: the tool's own count of its reports differs from the number parsed: its format is not as expected.
    """
    races: dict[Race, None] = {}
    errors: list[str] = []
    reports = 0
    summary: int | None = None
    first: tuple[str, str, Place] | None = None  # kind, kernel and place of a race's first access
    severity = ""
    for block in _blocks(text):
        head = block[0]
        if counted := _SUMMARY.match(head):
            summary = (summary or 0) + int(counted["count"])
            continue
        if head.startswith(NOT_REPORTS) or FAILED in head or " SUMMARY: " in head:
            continue
        reports += 1
        if race := _RACE.match(head):
            severity = race["severity"] or ""
            first = _access(race["access"], root)
            for line in block[1:]:
                if other := _OTHER.match(line):
                    kind, _, place = _access(other["access"], root)
                    races[Race(first[1], first[2], place, (first[0], kind), severity)] = None
            continue
        errors.append("\n".join(block))
    if summary is not None and summary != reports:
        others = "; ".join(error.splitlines()[0] for error in errors)
        raise ValueError(
            f"compute-sanitizer counts {summary} reports, but {reports} were read; other than races: {others or 'none'}"
        )
    finished = any(line.strip() == "finished" for line in text.splitlines())
    return Findings(tuple(races), tuple(errors), finished and summary is not None, text)


def _blocks(text: str) -> list[list[str]]:
    """The lines of each report: only the first line of a report is not indented."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        content = line.removeprefix(PREFIX).removeprefix(" ")
        if not content.strip():
            continue
        if content.startswith(" ") and blocks:
            blocks[-1].append(content.strip())
        else:
            blocks.append([content.strip()])
    return blocks


def _access(text: str, root: Path) -> tuple[str, str, Place]:
    """Kind, kernel and place of an access."""
    access = _ACCESS.match(text)
    at = access and _AT.match(access["at"])
    if not access or not at:
        raise ValueError(f"compute-sanitizer reports an access as {text!r}")
    file = at["file"] or "?"
    if Path(file).is_relative_to(root):
        file = str(Path(file).relative_to(root))
    elif (own := _PACKAGE.search(file)) and (root / own[0]).exists():  # compiled ahead, in another checkout
        file = own[0]
    return access["kind"], at["kernel"], Place(file, int(at["line"] or 0))


def known_hazards(path: Path) -> tuple[Known, ...]:
    """Read a file of known hazards, in TOML: tables `hazard` with `kernel`, `between` and `ordered_by`.

    Each side of a pair has the form `file:lines`, such as `a/b.py:3,7-9`.
    """
    return tuple(
        Known(hazard["kernel"], (_lines(hazard["between"][0]), _lines(hazard["between"][1])), hazard["ordered_by"])
        for hazard in tomllib.loads(path.read_text())["hazard"]
    )


def _lines(text: str) -> tuple[str, frozenset[int]]:
    file, _, numbers = text.rpartition(":")
    lines: set[int] = set()
    for part in numbers.split(","):
        start, _, stop = part.partition("-")
        lines.update(range(int(start), int(stop or start) + 1))
    return file, frozenset(lines)
