"""The loop over cases and implementations, for both frameworks; a failure omits only that implementation's rows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from traceback import clear_frames
from typing import Any, Protocol

from retrograd.opinfo.cases import Case

from .peers import Function, Native, NotApplicableError, Peer
from .record import Record
from .selection import thinned, tiny

HostTimes = Mapping[str, float]  # by pass, in microseconds

# A peer whose results differ from ours by more (relative, Euclidean norm) does not compute the same function.
DISAGREEMENT = 0.05


class Work(Protocol):
    """A case with its inputs, on which implementations are timed one after the other."""

    def time(self, peer: Peer, host_us: HostTimes) -> None:
        """Time one implementation and add its rows."""


def time_cases(
    record: Record,
    cases: Sequence[Case],
    implementations: Sequence[Peer],
    begin: Callable[[Case], Work],
    host_times: Callable[[Function | Native, Case], HostTimes],
) -> list[str]:
    """Time every implementation on every case.

    Args:
        record: receives the rows.
        cases: the cases to time.
        implementations: retrograd first; the results of the others are compared with its results.
        begin: draws a case's inputs.
        host_times: measures the host time of the passes of a tiny case; called once for each kind of case.

    Returns:
        The names of the cases on which retrograd itself failed.
    """
    record.add_limits()
    few = thinned(record.info, cases)
    hosts: dict[tuple[str, str], HostTimes] = {}
    failed = []
    for case in cases:
        work = begin(case)
        small = tiny(record.info, case)
        for peer in implementations:
            if peer.costly and case.name not in few:
                continue
            try:
                if small is not None and (peer.name, small.name) not in hosts:
                    hosts[peer.name, small.name] = host(record, small, peer, host_times)
                work.time(peer, hosts[peer.name, small.name] if small else {})
            except NotApplicableError as reason:
                record.leave_out(case, peer, str(reason))
            except Exception as error:
                leave_out_failed(record, case, peer, error)
                if peer is implementations[0]:
                    failed.append(case.name)
    return failed


def host(
    record: Record, case: Case, peer: Peer, host_times: Callable[[Function | Native, Case], HostTimes]
) -> HostTimes:
    """Measure the host times and add their rows; empty if a peer does not take so small a case, or fails on it."""
    try:
        times = host_times(peer.build(case), case)
    except NotApplicableError:
        return {}
    except Exception as error:
        leave_out_failed(record, case, peer, error)
        return {}
    record.add_host(case, peer, times)
    return times


def leave_out_failed(record: Record, case: Case, peer: Peer, error: Exception) -> None:
    """Note an error, and free the arrays of the frames in which it was raised: the next peer needs their memory."""
    record.leave_out(case, peer, f"{type(error).__name__}: {error}")
    clear_frames(error.__traceback__)
    gc.collect()  # errors and their frames hold each other


class Expected:
    """Retrograd's results for the first set of inputs of a case, with which those of peers are compared."""

    def __init__(self) -> None:
        self.results: dict[str, Sequence[Any]] = {}

    def check(self, what: str, found: Sequence[Any], difference: Callable[[Any, Any], float]) -> None:
        """Keep the first results of a kind; raise NotApplicableError if later results differ too much from them."""
        expected = self.results.setdefault(what, found)
        for place, (a, b) in enumerate(zip(found, expected, strict=True)):
            distance = difference(a, b)
            if not distance <= DISAGREEMENT:  # so that NaN does not pass
                raise NotApplicableError(f"its {what} {place} is {distance:.1g} away from retrograd's, relative")
