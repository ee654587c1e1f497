"""rms_norm as the contract, the benchmarks and the command line see it."""

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
from .spec import OP, Options, Spec
from .torch_op import ARGUMENTS, rms_norm


def spec_of(case: Case) -> Spec:
    """The spec of a case."""
    params = {name: Param(tensor.shape, tensor.dtype) for name, tensor in case.inputs.items()}
    return Spec(**params, options=Options(**{k: v for k, v in case.options.items() if k != "prenorm"}))


def has_dsum(case: Case) -> bool:
    """Whether a gradient of the sum comes into the backward pass: the sum is returned, and is not x itself."""
    return bool(case.options.get("prenorm")) and "residual" in case.inputs


def programs(case: Case, arch: Arch) -> tuple[Program, Program]:
    """The forward and the backward program of a case with dense inputs."""
    from . import schedule

    spec = spec_of(case)
    return schedule.forward(spec, {}, arch), schedule.backward(spec, {}, arch, has_dsum(case), parameters=True)


def load_jax() -> Callable[..., Any]:
    """The JAX function."""
    from .jax_op import rms_norm

    return rms_norm


def bytes_moved(case: Case, which: Pass) -> int:
    """The fewest bytes a pass moves."""
    return spec_of(case).bytes_moved(which, has_dsum(case))


def flops(case: Case, which: Pass) -> int:
    """The floating-point operations of a pass."""
    return spec_of(case).flops(which)


ROOM = Room(
    name=OP,
    arguments=ARGUMENTS,
    batch_axis={"x": 0, "residual": 0, "gate": 0},
    cases=CASES,
    torch=rms_norm,
    jax=load_jax,
    reference=reference.rms_norm,
    programs=programs,
    bytes_moved=bytes_moved,
    flops=flops,
    # Inputs of equal columns are normalised to a constant, which says nothing about errors.
    gradients_only=frozenset({"broadcast_columns", "broadcast"}),
)
