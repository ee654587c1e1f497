"""States of a model as tensors that steps overwrite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_type


def apart(state: Any) -> Any:
    """The same state in dense tensors that share no memory with each other; one in two places stays in both."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor, and what stands for it
    memory: set[int] = set()

    def own(part: Any) -> Any:
        if isinstance(part, Tensor):
            if id(part) not in seen:
                shared = part.untyped_storage().data_ptr() in memory
                dense = part.clone(memory_format=torch.contiguous_format) if shared else part.contiguous()
                memory.add(dense.untyped_storage().data_ptr())
                seen[id(part)] = part, dense
            return seen[id(part)][1]
        if not isinstance(part, Sequence):
            return part
        parts = map(own, part)
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)  # type: ignore[call-arg]

    return own(state)


def overwrite(state: Any, after: Any) -> None:
    """Give the tensors of a state, which share no memory, the values of another; tensors that both have are left alone.

    A tensor may have its new values from what another one has now, as where the last two inputs are kept.
    """
    pairs: dict[int, tuple[Tensor, Tensor]] = {}
    for old, new in zip(tensors(state), tensors(after), strict=True):
        if new.shape != old.shape:
            expected = f"{tuple(old.shape)}, as before the step, since steps are taken in place"
            raise bad_shape("generate", "state", new.shape, expected)
        if pairs.setdefault(id(old), (old, new))[1] is not new:
            raise ValueError("generate: state has a tensor in two places, expected a step to give both the same values")
    overwritten = {old.untyped_storage().data_ptr() for old, new in pairs.values() if old is not new}

    def read_before(new: Tensor) -> Tensor:
        return new.clone() if new.untyped_storage().data_ptr() in overwritten else new

    changed: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}  # of one dtype each, which one kernel copies
    for old, new in pairs.values():
        if old is not new:
            olds, news = changed.setdefault((old.dtype, new.dtype, old.device), ([], []))
            olds.append(old)
            news.append(read_before(new))
    for olds, news in changed.values():
        torch._foreach_copy_(olds, news)


def tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a state, in order: it is one, or None, or a sequence of states."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Sequence):
        for part in state:
            yield from tensors(part)
    elif state is not None:
        raise bad_type("generate", "state", state, "tensors, or sequences of them")
