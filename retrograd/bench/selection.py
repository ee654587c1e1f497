"""Selects the cases to time, and the implementations to time on each."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod

from retrograd.opinfo.cases import Case, matching
from retrograd.opinfo.info import OpInfo

from .measure import COLD_BYTES, input_sets
from .peers import Peer, peers

# The letters of the axes whose size grows along a curve; the other letters distinguish curves.
SIZE_LETTERS = ("M", "T")
# Device memory available to the inputs, outputs and gradients of all sets.
MEMORY_BYTES = 40e9
# At least this many sizes of one kind and width are a curve.
CURVE = 8


def bench_cases(info: OpInfo, globs: Sequence[str] = ("*",)) -> list[Case]:
    """The cases tagged `bench` whose name matches any of the patterns; raises ValueError if none does."""
    named = info.tagged("bench")
    found = matching(named, globs)
    if not found:
        names = ", ".join(case.name for case in named[:4])
        raise ValueError(f"no benchmark case of {info.name} matches {','.join(globs)}; there are {names}, ...")
    return found


def chosen_peers(op: str, framework: str, names: Sequence[str] | None) -> list[Peer]:
    """The op's peers with these names, or all for None; raises ValueError for an unknown name."""
    known = {peer.name: peer for peer in peers(op, framework)}
    for name in names or ():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(f"peer is {name!r}, expected one of the {framework} peers of {op}: {listed}")
    return [known[name] for name in (known if names is None else names)]


def kind(case: Case) -> tuple[object, ...]:
    """What cases that differ only in sizes share: arguments, their dtypes, and the names of the options set."""
    arguments = tuple((name, tensor.dtype) for name, tensor in case.inputs.items())
    return arguments, tuple(sorted(case.options))


def size_letter(shape: Sequence[str]) -> str | None:
    """The letter of the axis whose size grows along a curve."""
    return next((letter for letter in SIZE_LETTERS if letter in shape), None)


def thinned(info: OpInfo, cases: Sequence[Case]) -> set[str]:
    """The name of one case for each kind and width, for peers that take long to build.

    It is the case whose forward pass moves a number of bytes closest to COLD_BYTES: large, and about the same amount of
    work for every width.
    """

    def distance(case: Case) -> float:
        return abs(log(max(info.bytes_moved(case, "fwd"), 1) / COLD_BYTES))

    return {min(group, key=distance).name for group in groups(cases)}


def groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Groups of cases of one kind and width, which differ only in size."""
    found: dict[object, list[Case]] = {}
    for case in cases:
        size = size_letter(list(case.shape))
        found.setdefault((kind(case), tuple(item for item in case.shape.items() if item[0] != size)), []).append(case)
    return list(found.values())


def sparse(info: OpInfo, cases: Sequence[Case]) -> list[Case]:
    """The thinned cases, and every other case of a curve of many sizes, because JAX takes long to compile each."""
    kept = thinned(info, cases)
    for group in groups(cases):
        if len(group) >= CURVE:
            by_size = sorted(group, key=lambda case: info.bytes_moved(case, "fwd"))
            kept |= {case.name for case in by_size[::-2]}
    return [case for case in cases if case.name in kept]


def tiny(info: OpInfo, case: Case) -> Case | None:
    """The smallest non-empty test case of the same kind and ranks, on which host time dominates a call."""

    def elements(other: Case) -> int:
        return sum(prod(tensor.shape) for tensor in other.inputs.values())

    def ranks(other: Case) -> list[int]:
        return [len(tensor.shape) for tensor in other.inputs.values()]

    alike = [
        other
        for other in info.tagged("test")
        if kind(other) == kind(case)
        and ranks(other) == ranks(case)
        and all(prod(tensor.shape) > 1 for tensor in other.inputs.values())
    ]
    return min(alike, key=elements, default=None)


def sets_for(info: OpInfo, case: Case) -> int:
    """The number of input sets to draw: enough for a cold L2, few enough for the memory."""
    forward, backward = info.bytes_moved(case, "fwd"), info.bytes_moved(case, "bwd")
    affordable = int(MEMORY_BYTES // max(2 * (forward + backward), 1))
    sets = min(input_sets(forward), affordable)
    return max(1, sets if sets % 2 else sets - 1)
