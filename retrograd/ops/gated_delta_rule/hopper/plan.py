"""How the Hopper kernels use a multiprocessor. None of these numbers changes a bit."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ..op import Spec


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass.

    Attributes:
        prepare_registers: of a thread of `prepare`; of 128 four programs share a multiprocessor.
        walk_stages: blocks in shared memory, of a walk with results.
        heads: of a program of `vectors` and of `finish`.
    """

    prepare_registers: int = 128
    walk_stages: int = 3
    heads: int = 8


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    return Plan()
