"""Compiles the kernels of benchmark cases in many processes; a run alone would compile one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
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
    """Compile the kernels of a named case; see `compile_programs`."""
    room = room_of(op)
    return compile_programs(room, room.case(name), arch)


def compile_programs(room: Room, case: Case, arch: Arch) -> int:
    """Compile the kernels of both passes; returns how many launches have compiled. The others fail when they run."""
    compiled = 0
    for program in room.programs(case, arch) or ():
        for launch in program.launches:
            with suppress(Exception):
                build(launch, program.arrays, arch)
                compiled += 1
    return compiled
