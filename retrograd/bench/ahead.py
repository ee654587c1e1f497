"""Compiles the kernels of benchmark cases in many processes; a run alone would compile one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from retrograd.core.arch import Arch
from retrograd.core.build import build
from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.ops.rooms import room as room_of

from .selection import tiny


def compile_ahead(room: Room, cases: Sequence[Case], arch: Arch) -> None:
    """Fill the compiler's cache with the kernels of both passes of cases, and of the small cases of their host time."""
    small = (tiny(room, case) for case in cases)
    names = dict.fromkeys(case.name for case in (*cases, *small) if case is not None)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(compile_case, room.name, arch), names))


def compile_case(op: str, arch: Arch, name: str) -> int:
    """Compile a case's kernels; returns how many launches have compiled. What does not compile fails in the run."""
    room = room_of(op)
    compiled = 0
    for program in room.programs(room.case(name), arch) or ():
        for launch in program.launches:
            try:
                build(launch, program.arrays, arch)
            except Exception:
                continue
            compiled += 1
    return compiled
