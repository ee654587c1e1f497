"""Peers: what else computes the same op. They are run where they are installed, never copied.

`peers/<op>.py` lists an op's peers for PyTorch in PEERS, `peers/<op>_jax.py` those for JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from retrograd.core.cases import Case

# From the inputs by name to the outputs: one array, or a tuple of them.
Function = Callable[[Mapping[str, Any]], Any]


class NotApplicableError(Exception):
    """Why a peer does not take part: it is not installed, or does not compute this case."""


@dataclass(frozen=True)
class Native:
    """A peer that takes its inputs in variables of its own: another layout in memory, a logarithm.

    What it is timed on is made of the case's inputs beforehand. Its outputs and gradients are turned back for the
    comparison with retrograd's, the gradients by differentiating `prepare`.

    Attributes:
        call: the function, from its own inputs to its own outputs.
        prepare: from the case's inputs to its own, under the same names; differentiable.
        restore: from the list of its outputs to the case's; differentiable.
    """

    call: Function
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    restore: Callable[[Sequence[Any]], Sequence[Any]] = list


@dataclass(frozen=True)
class Peer:
    """An implementation to be timed.

    Attributes:
        name: the impl of its rows.
        build: from a case to the function; raises NotApplicableError, with the reason.
        distribution: the package whose version its rows record.
        costly: building it takes seconds for each shape, so it is measured on one size of each kind only.
    """

    name: str
    build: Callable[[Case], Function | Native]
    distribution: str | None = None
    costly: bool = False


def peers(op: str, framework: str) -> tuple[Peer, ...]:
    """An op's peers in a framework; none is imported before it is built."""
    module = f"{__name__}.{op}{'_jax' if framework == 'jax' else ''}"
    if find_spec(module) is None:
        return ()
    found: tuple[Peer, ...] = import_module(module).PEERS
    return found


def native(built: Function | Native) -> Native:
    """What a peer built; a plain function takes the case's own inputs."""
    return built if isinstance(built, Native) else Native(built)


def check_takes(case: Case, arguments: frozenset[str], options: frozenset[str] = frozenset()) -> None:
    """Raise NotApplicableError where a case has an argument, or sets an option, that a peer does not take."""
    for name in (*case.inputs, *(name for name, value in case.options.items() if value)):
        if name not in arguments | options:
            raise NotApplicableError(f"it takes no {name}")


def compile_for_one_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under torch.compile; differentiable more than once over the same graph, as a benchmark does it."""
    import torch
    from torch._functorch import config

    config.donated_buffer = False  # or compiled code frees what a second backward pass needs
    torch._dynamo.reset()  # or the shapes of earlier cases count against the limit of recompilations
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled


def load(module: str, attribute: str) -> Any:
    """An attribute of a peer's module; raises NotApplicableError where it cannot be had."""
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise NotApplicableError(f"{error.name} is not installed") from error
    except Exception as error:  # a peer's import may fail in its own way, on another GPU or version
        raise NotApplicableError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
