"""Rows of results: JSON lines in the format of docs/design.md, with functions to read, select and tabulate them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

LIMITS = "limits"  # the op of the rows that hold a run's limits
# By bound: the case of the limit's row, the unit of a rate, and the factor from an amount per millisecond to the unit.
RATES = {"bytes": ("copy", "GB/s", 1e-6), "flops": ("matmul", "TFLOP/s", 1e-9), "exp": ("exp", "Gexp/s", 1e-6)}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes:
        op, case: their names; rows of the limits have the op `limits`.
        shape: the letters of docs/design.md.
        dtype: of the activations.
        pass_: `fwd`, `bwd` or `fwd+bwd`; `pass` in the file.
        impl: `retrograd` or a peer.
        framework: `torch` or `jax`.
        device_ms: median device time of a call with a cold L2; None in rows that have only a host time.
        host_us: host time of such a call, measured on a tiny shape.
        limit_ms: the least time in which the machine can move the bytes and compute the operations of the call.
        bound: which of `bytes`, `flops` and `exp` sets that limit.
        gpu: the device's name.
        versions: of the installed packages.
        commit: of retrograd.
        date: when the run began; the rows of a run share it.
        timing: omitted from the file if a CUDA graph was timed; `events` if none could be captured; `wall` in JAX, for
            the wall clock over many queued calls.
    """

    op: str
    case: str
    shape: Mapping[str, int]
    dtype: str
    pass_: str
    impl: str
    framework: str
    device_ms: float | None
    host_us: float | None
    limit_ms: float | None
    bound: str | None
    gpu: str
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    date: str = ""
    timing: str | None = None

    def to_json(self) -> str:
        """The row as one line."""
        values = {name.rstrip("_"): rounded(value) for name, value in asdict(self).items()}
        if self.timing is None:
            del values["timing"]
        return json.dumps(values)

    @classmethod
    def from_json(cls, line: str) -> Row:
        """Parse a line; raises ValueError if it is not a row."""
        values = json.loads(line)
        try:
            values["pass_"] = values.pop("pass")
            return cls(**values)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a row of results: {line[:80]}") from error

    @property
    def fraction(self) -> float | None:
        """The limit's time as a fraction of the measured time."""
        return self.limit_ms / self.device_ms if self.device_ms and self.limit_ms else None


def rounded(value: Any) -> Any:
    """Round to five significant digits: more than a timing has."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def append(path: Path, row: Row) -> None:
    """Append a row to the file immediately, so that an interrupted run keeps its rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(row.to_json() + "\n")


def read(path: Path) -> list[Row]:
    """Every row of a file."""
    return [Row.from_json(line) for line in path.read_text().splitlines() if line.strip()]


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each measurement in a file of several runs; limits are kept for every run."""
    found: dict[Any, Row] = {}
    for row in rows:
        run = row.date if row.op == LIMITS else None
        found[row.op, row.case, row.dtype, row.pass_, row.impl, row.framework, row.gpu, run] = row
    return list(found.values())


class Speeds:
    """Converts rows to rates, using the limits measured in the same run."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.limits = {(row.case, row.framework, row.gpu, row.date): row for row in rows if row.op == LIMITS}

    def limit(self, row: Row) -> tuple[float, str] | None:
        """The rate of the row's limit and its unit, or None if the file does not contain it."""
        case, unit, per_ms = RATES.get(row.bound or "", ("", "", 0.0))
        measured = self.limits.get((case, row.framework, row.gpu, row.date))
        if measured is None or not measured.device_ms:
            return None
        work = {"copy": 2, "matmul": 2, "exp": 1}[case] * prod(measured.shape.values())
        return work / measured.device_ms * per_ms, unit

    def of(self, row: Row) -> tuple[float, str] | None:
        """The rate of a row and its unit; the percentage of the limit if the limit's rate is not known."""
        if row.fraction is None:
            return None
        limit = self.limit(row)
        return (row.fraction * limit[0], limit[1]) if limit else (100 * row.fraction, "% of limit")


def line(row: Row, speeds: Speeds) -> str:
    """A row as text for the terminal."""
    parts = [f"{row.case:<22}", f"{row.pass_:<7}", f"{row.impl:<14}"]
    parts.append(f"{row.device_ms:9.4f} ms" if row.device_ms is not None else f"{'':12}")
    speed = speeds.of(row)
    if speed is not None and row.fraction is not None:
        parts.append(f"{speed[0]:7.0f} {speed[1]}, {row.fraction:4.0%} of the limit ({row.bound})")
    if row.host_us is not None:
        parts.append(f"host {row.host_us:.0f} us")
    if row.timing:
        parts.append(f"[{row.timing}]")
    return "  ".join(parts).rstrip()


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a table, with the speed, its unit and the fraction of the limit."""
    import pandas as pd

    rows = list(rows)
    speeds = Speeds(rows)
    return pd.DataFrame(
        {
            **{name.rstrip("_"): value for name, value in asdict(row).items()},
            "speed": speed[0] if speed else None,
            "unit": speed[1] if speed else None,
            "fraction": row.fraction,
        }
        for row in rows
        for speed in [speeds.of(row)]
    )
