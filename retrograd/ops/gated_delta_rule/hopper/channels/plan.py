"""How the Hopper kernels for a decay of each channel use a multiprocessor. None of these numbers changes a bit."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ...op import Spec


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass. Stages are two or more.

    Attributes:
        row_registers: of a thread of `rows`: of 128 two programs share a multiprocessor.
        invert_registers: of a thread of `invert`; of 128 four programs share a multiprocessor.
        walk_stages: blocks in shared memory of what a walk with results needs first; one less of the rest.
        again_stages: the same of a walk from a kept state.
        again_registers: of a thread of it, on average: of 128 two programs share a multiprocessor.
        back_stages: of a walk back; one less of what a block needs last.
        span: blocks of steps of a program of `grads`.
        heads: of a program of `finish_rates`.
    """

    row_registers: int = 128
    invert_registers: int = 128
    walk_stages: int = 3
    again_stages: int = 2
    again_registers: int = 128
    back_stages: int = 3
    span: int = 8
    heads: int = 8


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    return Plan()
