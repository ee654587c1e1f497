"""Benchmark rows like those of a run on a GPU, with invented times."""

from collections.abc import Callable

from retrograd.bench.environment import Stamp
from retrograd.bench.limits import Limits
from retrograd.bench.measure import Clock, Timing
from retrograd.bench.peers import Peer
from retrograd.bench.record import Record
from retrograd.bench.results import Row
from retrograd.ops.infos import info

LIMITS = Limits(copy=4e12, matmul=7e14, exp=4e12)


def record(
    emit: Callable[[Row], None], note: Callable[[str], None] = print, date: str = "2026-01-01T00:00:00Z"
) -> Record:
    return Record(info("rms_norm"), "torch", Stamp("NVIDIA H200", "abc1234", date), LIMITS, emit, note)


def fake_clock() -> Clock:
    """A clock that runs every call and always returns the same times."""

    def device(calls: object) -> Timing:
        for call in calls:  # type: ignore[attr-defined]
            call()
        return Timing(0.5, "graph")

    def host(call: Callable[[], object]) -> float:
        call()
        return 7.0

    return Clock(device, host, lambda call: device([call]).ms)


def sample_rows() -> list[Row]:
    """Rows of limits and of two implementations on a few cases, each at half the limit."""
    rows: list[Row] = []
    filled = record(rows.append)
    filled.add_limits()
    op = filled.info
    for name in ("M4096_N256", "M8192_N256", "M16384_N256", "gated_M32768_N4096"):
        case = op.case(name)
        for which in ("fwd", "bwd"):
            limit, _ = LIMITS.of(op.bytes_moved(case, which), op.flops(case, which))
            for impl, share in (("retrograd", 1.0), ("torch", 0.5)):
                timing = Timing(limit / share, "graph")
                filled.add(case, which, Peer(impl, lambda case: print), timing, 5.0)
    return rows
