"""What stands below a picture: what the limit is, versions, and the runs from which the rows are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..results import RATES, Row, Speeds

# By bound: the work of a pass at its rate, and what is said of the rate.
WORK = {
    "bytes": ("the fewest bytes at the rate of a copy", "half reads, half writes"),
    "flops": ("the operations at the rate of a bf16 matrix product", ""),
    "exp": ("the exponentials at the rate of a kernel that does nothing else", ""),
}
READS = "A pass that reads more than it writes can be faster than a copy."


def limits(rows: Sequence[Row], speeds: Speeds) -> str:
    """What 100% is."""
    parts = []
    for bound, (work, remark) in WORK.items():
        if any(row.bound == bound for row in rows):
            known = ", ".join(filter(None, (rate(rows, speeds, bound), remark)))
            parts.append(f"of {work}{f' ({known})' if known else ''}")
    which = "the time" if len(parts) == 1 else "the longest of the times"
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    text = f"100% is {which} {listed}. The rates are measured in the same run."
    passed = any(row.bound == "bytes" and (row.fraction or 0) > 1 for row in rows)
    return f"{text} {READS}" if passed else text


def rate(rows: Sequence[Row], speeds: Speeds, bound: str) -> str:
    """The rates of a limit in the runs of the rows, from the lowest to the highest; empty if the file has none."""
    found = sorted({limit[0] for row in rows if row.bound == bound and (limit := speeds.limit(row))})
    shown = dict.fromkeys(f"{value:,.0f}" for value in found[:1] + found[-1:])
    return f"{' to '.join(shown)} {RATES[bound][1]}" if shown else ""


def versions(installed: Iterable[Mapping[str, str]]) -> str:
    """Every version of every package."""
    found: dict[str, dict[str, None]] = {}
    for packages in installed:
        for name, version in packages.items():
            found.setdefault(name, {})[version] = None
    return ", ".join(f"{name} {' and '.join(own)}" for name, own in found.items())


def runs(measured: Iterable[tuple[str, str]]) -> str:
    """The days, with the commits, of pairs of date and commit."""
    days: dict[str, dict[str, None]] = {}
    for date, commit in sorted(measured):
        days.setdefault(date[:10], {})[commit] = None
    return ", ".join(f"{day} ({', '.join(commits)})" for day, commits in days.items())


def provenance(rows: Iterable[Row]) -> str:
    """Versions, days and commits of rows."""
    rows = list(rows)
    return f"{versions(row.versions for row in rows)}. Measured {runs((row.date, row.commit) for row in rows)}."
