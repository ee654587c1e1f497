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
        again_stages: of a walk from a kept state.
        again_registers: of a thread of it, on average: of 128 two programs share a multiprocessor.
        back_stages: of a walk back.
        span: blocks of steps of a program of `grads`.
        row_stages: tiles of do, D and dv in shared memory.
        state_stages: of each half of states and of their gradients.
        query_stages: of q and k.
        grad_registers: of a thread of `grads` that has products with states.
        heads: of a program of `vectors` and of `finish`.
    """

    prepare_registers: int = 128
    walk_stages: int = 3
    again_stages: int = 2
    again_registers: int = 128
    back_stages: int = 3
    span: int = 8
    row_stages: int = 3
    state_stages: int = 3
    query_stages: int = 2
    grad_registers: int = 152
    heads: int = 8


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    return Plan()
