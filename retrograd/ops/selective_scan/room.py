"""selective_scan as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.cases import Case
from retrograd.core.op import Param
from retrograd.core.program import Program
from retrograd.core.room import Pass, Room

from . import reference
from .cases import CASES
from .op import OP
from .spec import Spec
from .torch_op import selective_scan


def spec_of(case: Case) -> Spec:
    """The spec of a case."""
    return OP.spec({name: Param(tensor.shape, tensor.dtype) for name, tensor in case.inputs.items()}, case.options)


def programs(case: Case, arch: Arch) -> tuple[Program, Program] | None:
    """The forward and the backward program of a case with dense inputs, all gradients wanted."""
    spec = spec_of(case)
    forward = OP.forward(spec).program({}, arch)
    backward = OP.backward(spec, frozenset(case.inputs)).program({}, arch)
    return None if forward is None or backward is None else (forward, backward)


def load_jax() -> Callable[..., Any]:
    """The JAX function."""
    from .jax_op import selective_scan

    return selective_scan


def bytes_moved(case: Case, which: Pass) -> int:
    """The fewest bytes a pass moves."""
    return spec_of(case).bytes_moved(which)


def flops(case: Case, which: Pass) -> int:
    """The floating-point operations of a pass."""
    return spec_of(case).flops(which)


def exps(case: Case, which: Pass) -> int:
    """The exponentials of a pass."""
    return spec_of(case).exps(which)


ROOM = Room(
    name=OP.name,
    arguments=OP.arguments,
    batch_axis={"x": 0, "dt": 0, "B": 0, "C": 0, "z": 0, "initial_state": 0},
    cases=CASES,
    torch=selective_scan,
    jax=load_jax,
    reference=reference.selective_scan,
    programs=programs,
    bytes_moved=bytes_moved,
    flops=flops,
    exps=exps,
    plain=reference.plain,
    time_axis={"x": 1, "dt": 1, "B": 1, "C": 1, "z": 1},
    sequence_axis={"initial_state": 0},
)
