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
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info as info_of

from .selection import tiny


def compile_ahead(info: OpInfo, cases: Sequence[Case], arch: Arch) -> None:
    """Fill the compiler's cache with the kernels of both passes of cases, and of the small cases of their host time."""
    small = (tiny(info, case) for case in cases)
    names = dict.fromkeys(case.name for case in (*cases, *small) if case is not None)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(compile_case, info.name, arch), names))


def compile_case(op: str, arch: Arch, name: str) -> int:
    """Compile the kernels of a named case; see `compile_programs`."""
    info = info_of(op)
    return compile_programs(info, info.case(name), arch)


def compile_programs(info: OpInfo, case: Case, arch: Arch) -> int:
    """Compile the kernels of both passes; returns how many launches have compiled. The others fail when they run."""
    compiled = 0
    for program in info.programs(case, arch) or ():
        for launch in program.launches:
            with suppress(Exception):
                build(launch, program.arrays, arch)
                compiled += 1
    return compiled
