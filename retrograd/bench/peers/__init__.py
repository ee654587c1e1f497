"""Peers: what else computes the same op. They are run where they are installed, never copied.

`peers/<op>.py` lists an op's peers for PyTorch in PEERS, `peers/<op>_jax.py` those for JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
class Peer:
    """An implementation to be timed.

    Attributes:
        name: the impl of its rows.
        build: from a case to the function; raises NotApplicableError, with the reason.
        distribution: the package whose version its rows record.
        costly: building it takes seconds for each shape, so it is measured on one size of each kind only.
    """

    name: str
    build: Callable[[Case], Function]
    distribution: str | None = None
    costly: bool = False


def peers(op: str, framework: str) -> tuple[Peer, ...]:
    """An op's peers in a framework; none is imported before it is built."""
    module = f"{__name__}.{op}{'_jax' if framework == 'jax' else ''}"
    if find_spec(module) is None:
        return ()
    found: tuple[Peer, ...] = import_module(module).PEERS
    return found


def load(module: str, attribute: str) -> Any:
    """An attribute of a peer's module; raises NotApplicableError where it cannot be had."""
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise NotApplicableError(f"{error.name} is not installed") from error
    except Exception as error:  # a peer's import may fail in its own way, on another GPU or version
        raise NotApplicableError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
