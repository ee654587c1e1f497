"""linear_scan as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from retrograd.core.arch import Arch
from retrograd.core.cases import Case
from retrograd.core.op import Param
from retrograd.core.program import Program
from retrograd.core.room import Pass, Room

from . import plan, reference
from .cases import CASES
from .op import OP
from .spec import Spec
from .torch_op import linear_scan


def spec_of(case: Case) -> Spec:
    """The spec of a case."""
    params: dict[str, Any] = {name: Param(tensor.shape, tensor.dtype) for name, tensor in case.inputs.items()}
    return Spec(**params, **case.options)


def programs(case: Case, arch: Arch) -> tuple[Program, Program] | None:
    """The forward and the backward program of a case with dense inputs, all gradients wanted."""
    spec = spec_of(case)
    forward = OP.forward(spec).program({}, arch)
    backward = OP.backward(spec, frozenset(case.inputs) - OP.indices).program({}, arch)
    return None if forward is None or backward is None else (forward, backward)


def load_jax() -> Callable[..., Any]:
    """The JAX function."""
    from .jax_op import linear_scan

    return linear_scan


def bytes_moved(case: Case, which: Pass) -> int:
    """The fewest bytes a pass moves."""
    return spec_of(case).bytes_moved(which)


def flops(case: Case, which: Pass) -> int:
    """The floating-point operations of a pass."""
    return spec_of(case).flops(which)


@contextmanager
def one_pass() -> Iterator[None]:
    """Tiles hand on their state."""
    with mock.patch.object(plan, "one_pass", return_value=True):
        yield


@contextmanager
def three_kernels() -> Iterator[None]:
    """Reduce, carry, scan."""
    with mock.patch.object(plan, "one_pass", return_value=False):
        yield


ROOM = Room(
    name=OP.name,
    arguments=OP.arguments,
    batch_axis={"a": 0, "b": 0, "initial_state": 0},
    cases=CASES,
    torch=linear_scan,
    jax=load_jax,
    reference=reference.linear_scan,
    programs=programs,
    bytes_moved=bytes_moved,
    flops=flops,
    time_axis={"a": 1, "b": 1},
    sequence_axis={"initial_state": 0},
    structures={"one pass": one_pass, "three kernels": three_kernels},
)
