"""Peers: other implementations of an op. They are run if they are installed; their code is never copied.

`peers/<op>.py` lists an op's peers for PyTorch in PEERS, `peers/<op>_jax.py` those for JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from retrograd.opinfo.cases import Case

# From the inputs by name to the outputs: an array or a tuple of arrays.
Function = Callable[[Mapping[str, Any]], Any]


class NotApplicableError(Exception):
    """Raised if a peer is not installed or does not compute a case."""


@dataclass(frozen=True)
class Native:
    """A peer whose inputs differ from the case's: in their layout, or by a transformation such as a logarithm.

    The peer's inputs are computed from the case's inputs before timing. Its outputs and gradients are converted back
    for the comparison with retrograd's, the gradients by differentiating `prepare`.

    Attributes:
        call: the timed function, from the peer's inputs to the peer's outputs.
        prepare: from the case's inputs to the peer's; differentiable.
        restore: from the list of the peer's outputs to the case's; differentiable.
    """

    call: Function
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    restore: Callable[[Sequence[Any]], Sequence[Any]] = list


@dataclass(frozen=True)
class Peer:
    """An implementation to be timed.

    Attributes:
        name: the `impl` of its rows.
        build: from a case to the function; raises NotApplicableError with the reason if the peer does not apply.
        distribution: the package whose version its rows record.
        costly: whether building takes seconds for each shape; such a peer is measured on one size of each kind only.
    """

    name: str
    build: Callable[[Case], Function | Native]
    distribution: str | None = None
    costly: bool = False


def peers(op: str, framework: str) -> tuple[Peer, ...]:
    """An op's peers in a framework; a peer's package is imported only when the peer is built."""
    module = f"{__name__}.{op}{'_jax' if framework == 'jax' else ''}"
    if find_spec(module) is None:
        return ()
    found: tuple[Peer, ...] = import_module(module).PEERS
    return found


def native(built: Function | Native) -> Native:
    """A built peer as `Native`; a plain function takes the case's own inputs."""
    return built if isinstance(built, Native) else Native(built)


def check_takes(case: Case, arguments: frozenset[str], options: frozenset[str] = frozenset()) -> None:
    """Raise NotApplicableError if a case has an argument, or sets an option, that a peer does not take."""
    for name in (*case.inputs, *(name for name, value in case.options.items() if value)):
        if name not in arguments | options:
            raise NotApplicableError(f"it takes no {name}")


def compile_for_one_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under torch.compile; its graph can be differentiated repeatedly, as benchmarks do."""
    import torch
    from torch._functorch import config

    config.donated_buffer = False  # otherwise compiled code frees arrays that a second backward pass needs
    torch._dynamo.reset()  # otherwise earlier cases count towards the recompilation limit
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled


def load(module: str, attribute: str) -> Any:
    """An attribute of a peer's module; raises NotApplicableError if it cannot be imported."""
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise NotApplicableError(f"{error.name} is not installed") from error
    except Exception as error:  # importing a peer may raise any error, depending on GPU and versions
        raise NotApplicableError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
